from router.core.explain import Explanations, explain
from router.core.placement import Desk, Rules
from tests.support.instances import both, decode, fleet, intake, prefill

FLEET = fleet(
    prefill("p0"), prefill("p1", draining=True), prefill("p2", compat="x"), decode("d0"), decode("d1"), both("b0")
)


def why(folded=FLEET, request=None, excluded=(), at_s=7.0, **rules):
    request, excluded = request or intake(session=b"s", request_id="req-1"), frozenset(excluded)
    choice = Desk(Rules(**rules)).choose(folded, request, 1, excluded)
    return explain(folded, request, choice, excluded, at_s)


def skipped(explanation):
    return {candidate.instance_id: candidate.skipped for candidate in explanation.candidates}


def test_a_placement_names_what_was_chosen_and_who_else_there_was():
    told = why(excluded={"d1"})
    assert (told.at_s, told.request_id, told.model, told.prompt_tokens) == (7.0, "req-1", "m", 4)
    assert (told.mode, told.reason, told.prefill, told.decode, told.session) == ("push", "configured", "p0", "d0", True)
    assert skipped(told) == {"p0": "", "p1": "draining", "p2": "no_pair", "d0": "", "d1": "excluded", "b0": "no_pair"}


def test_a_local_placement_needs_no_prefill():
    told = why(request=intake(whole="n"))
    assert (told.mode, told.reason, told.prefill) == ("local", "n", "")
    assert skipped(told) == {
        "p0": "other_role",
        "p1": "draining",
        "p2": "other_role",
        "d0": "",
        "d1": "",
        "b0": "",
    }


def test_a_refusal_is_explained_by_its_code():
    told = why(excluded={"p0"})
    assert (told.mode, told.reason, told.prefill, told.decode) == ("", "no_prefill", "", "")
    assert skipped(told)["p0"] == "excluded"
    nobody = why(request=intake("other"))
    assert (nobody.reason, nobody.candidates) == ("model_not_found", ())


def test_candidates_have_their_weights():
    folded = fleet(prefill(), decode())
    folded.members[0].burden.take(30)
    first, second = why(folded).candidates
    assert (first.instance_id, first.role, first.tokens, first.sequences, first.room) == ("d0", "decode", 30, 1, True)
    assert (second.tokens, second.sequences) == (0, 0)
    assert first.prefill_s > second.prefill_s > 0 and first.step_s > second.step_s > 0


def test_the_last_are_kept_the_newest_first():
    kept = Explanations(2)
    for number in range(3):
        kept.add(why(at_s=float(number)))
    assert [one.at_s for one in kept.newest(9)] == [2.0, 1.0]
    assert [one.at_s for one in kept.newest(1)] == [2.0]
