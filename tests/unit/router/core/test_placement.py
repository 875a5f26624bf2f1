import pytest

from router.contract.errors import BadRequest, ModelUnknown, NoDecode, NoPair, NoPrefill
from router.contract.instance import Mode
from router.core.placement import Desk, Placement, Refusal, Rules
from router.core.policies import least_loaded, round_robin
from tests.support.instances import both, decode, fleet, intake, prefill

NOBODY = frozenset()


def choose(folded, request=None, turn=0, excluded=NOBODY, **rules):
    return Desk(Rules(**rules)).choose(folded, request or intake(), turn, frozenset(excluded))


def chosen(placement) -> tuple[str | None, str, Mode, str]:
    assert isinstance(placement, Placement)
    first = placement.prefill.instance.instance_id if placement.prefill else None
    return first, placement.decode.instance.instance_id, placement.mode, placement.reason


def refused(refusal) -> type:
    assert isinstance(refusal, Refusal)
    assert refusal.error.message.endswith((".", "again later."))
    return type(refusal.error)


def test_a_pair_is_chosen_up_front():
    assert chosen(choose(fleet(prefill(), decode()))) == ("p0", "d0", Mode.PUSH, "configured")
    assert chosen(choose(fleet(prefill(), decode()), mode=Mode.PULL)) == ("p0", "d0", Mode.PULL, "configured")


def test_decode_is_chosen_among_those_that_prefill_can_feed():
    folded = fleet(prefill("p0", compat="a"), decode("d0", compat="b"), decode("d1", compat="a"))
    for turn in range(8):
        assert chosen(choose(folded, turn=turn))[:2] == ("p0", "d1")


@pytest.mark.parametrize(
    ("folded", "request_", "rules", "reason"),
    [
        (fleet(prefill(), decode()), intake(), {"mode": Mode.LOCAL}, "configured"),
        (fleet(prefill(), decode()), intake(whole="n"), {}, "n"),
        (fleet(prefill(), decode()), intake(body=b"x" * 99), {"local_below_chars": 100}, "short"),
        (fleet(both("d0")), intake(), {}, "only_both"),
    ],
)
def test_local_has_its_reason(folded, request_, rules, reason):
    assert chosen(choose(folded, request_, **rules)) == (None, "d0", Mode.LOCAL, reason)


def test_what_no_engine_can_do_is_the_clients_to_change():
    lacking, other = decode("d0", lacks=("n",)), decode("d1")
    folded = fleet(prefill(), lacking, other)
    for turn in range(4):
        assert chosen(choose(folded, intake(whole="n"), turn))[1] == "d1"
        assert chosen(choose(folded, intake(whole="n"), turn, mode=Mode.LOCAL))[1] == "d1"
    assert refused(choose(fleet(prefill(), lacking), intake(whole="n"))) is BadRequest
    assert refused(choose(folded, intake(whole="n"), excluded={"d1"})) is NoDecode
    assert refused(choose(fleet(prefill()), intake(whole="n"))) is NoDecode


def test_where_there_is_one_model_a_tokenizer_need_not_name_it():
    tokenizing = decode("d0", endpoints=("/tokenize",))
    assert chosen(choose(fleet(prefill(), tokenizing), intake("", whole="/tokenize")))[1:] == (
        "d0",
        Mode.LOCAL,
        "/tokenize",
    )
    several = fleet(tokenizing, prefill(), decode("d1", model="x"))
    assert refused(choose(several, intake("", whole="/tokenize"))) is ModelUnknown


def test_a_body_at_the_limit_is_not_short():
    assert chosen(choose(fleet(prefill(), decode()), intake(body=b"x" * 100), local_below_chars=100))[2] is Mode.PUSH


@pytest.mark.parametrize(
    ("folded", "error"),
    [
        (fleet(), NoPrefill),
        (fleet(decode(model="other"), prefill(model="other")), ModelUnknown),
        (fleet(decode()), NoPrefill),
        (fleet(prefill()), NoDecode),
        (fleet(prefill(compat="a"), decode(compat="b")), NoPair),
    ],
)
def test_a_refusal_says_what_is_missing(folded, error):
    assert refused(choose(folded)) is error


def test_a_whole_request_needs_decode():
    assert refused(choose(fleet(prefill()), intake(whole="n"))) is NoDecode


def test_the_excluded_are_not_chosen_again():
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    for turn in range(8):
        assert chosen(choose(folded, turn=turn, excluded={"p0", "d1"}))[:2] == ("p1", "d0")
    assert refused(choose(folded, excluded={"p0", "p1"})) is NoPrefill
    assert refused(choose(folded, excluded={"d0", "d1"})) is NoDecode
    assert refused(choose(folded, intake(whole="n"), excluded={"d0", "d1"})) is NoDecode


def test_an_instance_is_not_paired_with_itself():
    folded = fleet(both("b0"), prefill("p0", compat="other"))
    assert refused(choose(folded)) is NoPair


def test_prefill_is_weighed_in_prompt_tokens_and_decode_in_sequences():
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    by_name = {member.instance.instance_id: member for member in folded.members}
    by_name["p0"].burden.take(1000)
    by_name["d1"].burden.take(1)
    for turn in range(8):
        assert chosen(choose(folded, turn=turn))[:2] == ("p1", "d0")


def test_each_role_has_its_policy():
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    pairs = [
        chosen(choose(folded, turn=turn, prefill_policy=round_robin, decode_policy=least_loaded))[:2]
        for turn in range(2)
    ]
    assert [first for first, _ in pairs] == ["p0", "p1"]


def test_ten_slow_prefills_are_spread_evenly():
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    counts = {"p0": 0, "p1": 0, "d0": 0, "d1": 0}
    for turn in range(10):
        placement = choose(folded, turn=turn)
        for member in (placement.prefill, placement.decode):
            member.burden.take(10)
            counts[member.instance.instance_id] += 1
    assert counts == {"p0": 5, "p1": 5, "d0": 5, "d1": 5}


def test_of_equals_everybody_meets_everybody():
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    assert {chosen(choose(folded, turn=turn))[:2] for turn in range(40)} == {
        (first, second) for first in ("p0", "p1") for second in ("d0", "d1")
    }
