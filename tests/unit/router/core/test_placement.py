from dataclasses import replace

import pytest

from router.contract.errors import BadRequest, ModelUnknown, NoDecode, NoPair, NoPrefill
from router.contract.instance import EngineKind, Mode
from router.contract.ledger import Outcome
from router.core.keepers import Keepers
from router.core.late import LEAST_KNOWN, LateChoice
from router.core.placement import CROWDED, Desk, Placement, Refusal, Rules
from router.core.policies import least_loaded, round_robin
from router.core.prefix import PrefixAffinity
from router.core.record import Record
from router.core.session import SessionAffinity
from tests.support.instances import Seen, both, decode, fleet, intake, prefill

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


PUSHING, PULLING = {"modes": [Mode.PUSH]}, {"modes": [Mode.PULL]}
ASKED = "asked"


def mixed():
    """Two that push, two that pull, and two that can do both."""
    return fleet(
        prefill("p-push", **PUSHING),
        decode("d-push", **PUSHING),
        prefill("p-pull", **PULLING),
        decode("d-pull", **PULLING),
        prefill("p-any"),
        decode("d-any"),
    )


def test_in_a_mixed_pool_each_pair_hands_over_as_it_can():
    seen = {chosen(choose(mixed(), turn=turn, mode=None))[:3] for turn in range(100)}
    assert seen == {
        ("p-push", "d-push", Mode.PUSH),
        ("p-push", "d-any", Mode.PUSH),
        ("p-pull", "d-pull", Mode.PULL),
        ("p-pull", "d-any", Mode.PULL),
        ("p-any", "d-push", Mode.PUSH),
        ("p-any", "d-pull", Mode.PULL),
        ("p-any", "d-any", Mode.PUSH),
    }


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
def test_a_fixed_mode_uses_those_who_have_it(mode):
    other = "pull" if mode is Mode.PUSH else "push"
    for turn in range(30):
        first, second, used, _ = chosen(choose(mixed(), turn=turn, mode=mode))
        assert used is mode
        assert f"p-{other}" != first and f"d-{other}" != second


def test_prompts_below_the_crossover_are_local():
    pair = fleet(prefill(), decode())
    rules = {"mode": None, "crossover_tokens": 100}
    assert chosen(choose(pair, intake(body=b"x" * 395), **rules)) == (None, "d0", Mode.LOCAL, "short")
    assert chosen(choose(pair, intake(body=b"x" * 396), **rules)) == ("p0", "d0", Mode.PUSH, "long")


def test_without_a_pair_auto_is_local_and_says_so():
    for alone in (fleet(decode()), fleet(prefill(compat="a"), decode(compat="b"))):
        assert chosen(choose(alone, mode=None)) == (None, "d0", Mode.LOCAL, "no_pair")
    pair = fleet(prefill(), decode())
    assert chosen(choose(pair, mode=None, excluded={"p0"})) == (None, "d0", Mode.LOCAL, "no_pair")
    assert refused(choose(fleet(prefill()), mode=None)) is NoDecode


@pytest.mark.parametrize(
    ("allowed", "rules", "expected"),
    [
        ({Mode.PULL}, {}, (Mode.PULL, ASKED)),
        ({Mode.LOCAL}, {}, (Mode.LOCAL, ASKED)),
        ({Mode.PUSH, Mode.PULL}, {}, (Mode.PUSH, "configured")),
        ({Mode.PULL, Mode.LOCAL}, {}, (Mode.PULL, ASKED)),
        ({Mode.PUSH}, {"mode": Mode.LOCAL}, (Mode.PUSH, ASKED)),
        ({Mode.PUSH, Mode.PULL}, {"local_below_chars": 10**6}, (Mode.PUSH, ASKED)),
        ({Mode.PULL}, {"mode": None}, (Mode.PULL, ASKED)),
        ({Mode.PUSH, Mode.PULL}, {"mode": None}, (Mode.PUSH, "unknown")),
    ],
)
def test_the_client_may_choose_the_mode(allowed, rules, expected):
    request = intake(allowed=frozenset(allowed))
    assert chosen(choose(fleet(prefill(), decode()), request, **rules))[2:] == expected


def test_of_several_allowed_modes_one_is_taken_that_can_be():
    request = intake(allowed=frozenset({Mode.PUSH, Mode.PULL}))
    pulling = fleet(prefill(**PULLING), decode(**PULLING))
    assert chosen(choose(pulling, request, mode=Mode.LOCAL))[2:] == (Mode.PULL, ASKED)
    assert refused(choose(fleet(decode()), request, mode=Mode.LOCAL)) is NoPrefill


def test_a_client_that_forbids_local_gets_none_where_nobody_is_left_to_prefill():
    request = intake(allowed=frozenset({Mode.PUSH, Mode.PULL}))
    assert refused(choose(fleet(prefill(), decode()), request, mode=None, excluded={"p0"})) is NoPrefill
    assert refused(choose(fleet(decode()), request, mode=None)) is NoPrefill
    assert refused(choose(fleet(prefill(compat="a"), decode(compat="b")), request, mode=None)) is NoPair


def test_engines_that_are_both_hand_over_when_they_are_asked_to():
    request = intake(allowed=frozenset({Mode.PUSH}))
    first, second, mode, _ = chosen(choose(fleet(both("b0"), both("b1")), request))
    assert {first, second} == {"b0", "b1"} and mode is Mode.PUSH


def test_a_retry_finds_the_prefill_that_can_still_feed_somebody():
    folded = fleet(
        prefill("p0", compat="a"), decode("d0", compat="a"), prefill("p1", compat="b"), decode("d1", compat="b")
    )
    for turn in range(8):
        assert chosen(choose(folded, turn=turn, excluded={"d0"}))[:2] == ("p1", "d1")


def served(**fields) -> Record:
    times = {"sent_s": 0.01, "prefilled_s": 0.51, "content_s": 0.61, "last_byte_s": 1.61, "num_events": 11}
    fields = {"attempts": 1, "outcome": Outcome.SERVED} | times | fields
    return Record(0.0, "r", "", "m", "e", fields.pop("stream", True), **fields)


def test_what_was_served_is_learned():
    desk = Desk(Rules(None, learns=True))
    assert desk.learns
    placement = desk.choose(fleet(prefill(), decode()), intake(body=b"x" * 4000), 0, NOBODY)
    placement.ahead_tokens = 500
    for _ in range(400):
        desk.learn(placement, 1000, served())
    pace = placement.prefill.burden.pace, placement.decode.burden.pace
    assert pace[0].prefill.at(1500) == pytest.approx(0.5, rel=0.01)
    assert pace[1].step.at(1) == pytest.approx(0.1, rel=0.01)
    for _ in range(20):
        desk.learn(Placement(Mode.LOCAL, None, placement.decode, "x"), 1000, served(prefilled_s=0.0, content_s=0.2))
    assert desk.crossover.tokens == 1024


@pytest.mark.parametrize(
    "fields", [{"outcome": Outcome.FAILED}, {"content_s": 0.0, "prefilled_s": 0.0}, {"attempts": 2, "prefilled_s": 0.0}]
)
def test_what_says_nothing_is_not_learned(fields):
    desk = Desk(Rules(None))
    placement = desk.choose(fleet(prefill(), decode()), intake(body=b"x" * 4000), 0, NOBODY)
    before = placement.prefill.burden.pace.prefill.at(1000)
    for _ in range(20):
        desk.learn(placement, 1000, served(num_events=0, **fields))
        desk.learn(Placement(Mode.LOCAL, None, placement.decode, "x"), 1000, served(num_events=0, **fields))
    assert placement.prefill.burden.pace.prefill.at(1000) == before
    assert desk.crossover.choose(1000, streamed=False) == (False, "unknown")


def test_learning_costs_nothing_where_nobody_learns():
    assert not Desk(Rules()).learns
    assert not Desk(Rules(None, crossover_tokens=5)).learns
    assert Desk(Rules(None)).learns and Desk(Rules(learns=True)).learns


def test_what_waits_is_noted_for_those_who_learn():
    pair = fleet(prefill(), decode())
    pair.members[1].burden.take(70)
    assert choose(pair, learns=True).ahead_tokens == 70
    assert choose(pair).ahead_tokens == 0
    assert choose(pair, intake(kept_tokens=50), learns=True).ahead_tokens == 20


def zoned(seen, zone):
    return Seen(replace(seen.instance, zone=zone))


def zones(near=2, far=2):
    near_, far_ = (
        tuple(zoned(decode(f"{zone}{n}"), zone) for n in range(num)) for zone, num in (("a", near), ("b", far))
    )
    return fleet(zoned(prefill("p0"), "a"), *near_, *far_)


def test_decode_is_taken_from_prefills_zone():
    folded = zones()
    assert {chosen(choose(folded, turn=turn))[1] for turn in range(40)} == {"a0", "a1"}
    assert {chosen(choose(folded, turn=turn, excluded={"a0", "a1"}))[1] for turn in range(40)} == {"b0", "b1"}
    assert {chosen(choose(zones(near=0), turn=turn))[1] for turn in range(40)} == {"b0", "b1"}


def test_a_crowded_zone_sends_across_what_the_other_can_take_more_easily():
    folded = zones(near=1, far=1)
    near, far = folded.pools["m"].solos
    for _ in range(CROWDED):
        assert chosen(choose(folded))[1] == "a0"
        near.burden.take(1)
    assert {chosen(choose(folded, turn=turn))[1] for turn in range(40)} == {"b0"}
    for _ in range(CROWDED // 2 + 1):
        far.burden.take(1)
    assert {chosen(choose(folded, turn=turn))[1] for turn in range(40)} == {"a0"}


def test_a_session_keeps_its_decode_instance_whatever_prefill_would_be_chosen():
    rules = {"decode_policy": SessionAffinity(), "decode_first": True}
    seen = {
        (request := f"s{n}".encode()): {
            chosen(choose(mixed(), intake(session=request), turn, mode=None, **rules))[1] for turn in range(30)
        }
        for n in range(20)
    }
    assert all(len(decodes) == 1 for decodes in seen.values())
    assert {next(iter(decodes)) for decodes in seen.values()} == {"d-push", "d-pull", "d-any"}


def test_decode_first_pairs_with_those_that_can_feed_it_and_are_not_excluded():
    rules = {"decode_policy": SessionAffinity(), "decode_first": True}
    folded = fleet(
        prefill("p0", compat="a"), decode("d0", compat="a"), prefill("p1", compat="b"), decode("d1", compat="b")
    )
    for turn in range(20):
        request = intake(session=b"%d" % turn)
        assert chosen(choose(folded, request, turn, **rules))[:2] in {("p0", "d0"), ("p1", "d1")}
        assert chosen(choose(folded, request, turn, {"p0"}, **rules))[:2] == ("p1", "d1")
        assert refused(choose(folded, request, turn, {"p0", "d1"}, **rules)) is NoDecode


def test_decode_that_keeps_nearly_all_of_a_prompt_computes_the_rest_itself():
    pair = fleet(prefill(), decode("d0"), decode("d1"))
    rules = Rules(None, decode_policy=PrefixAffinity(), crossover_tokens=100, decode_first=True)
    desk = Desk(rules)
    talk = b"x" * 4096

    def ask(prompt, **fields):
        return chosen(desk.choose(pair, intake(body=prompt, prompt=prompt, **fields), 0, NOBODY))

    _, keeper, mode, reason = ask(talk)
    assert (mode, reason) == (Mode.PUSH, "long")
    assert ask(talk + b"y" * 300) == (None, keeper, Mode.LOCAL, "cached")
    assert ask(talk + b"z" * 500)[2:] == (Mode.PUSH, "long")
    assert ask(talk, allowed=frozenset({Mode.PUSH, Mode.PULL}))[2] is Mode.PUSH
    excluded = frozenset({keeper})
    assert desk.choose(pair, intake(body=talk, prompt=talk), 0, excluded).mode is Mode.PUSH
    pair.pools["m"].solos.by_id[keeper].burden.take(10_000)
    assert ask(talk + b"y" * 300)[2] is Mode.PUSH, "it is too busy"


def test_nobody_that_drains_is_chosen_and_those_that_are_both_step_in():
    folded = fleet(prefill("p0", draining=True), prefill("p1"), decode("d0"), decode("d1", draining=True))
    for turn in range(20):
        assert chosen(choose(folded, turn=turn))[:2] == ("p1", "d0")
        assert chosen(choose(folded, intake(whole="n"), turn))[1] == "d0"
    assert refused(choose(fleet(prefill(draining=True), decode()))) is NoPrefill
    assert refused(choose(fleet(prefill(), decode(draining=True)))) is NoDecode
    assert chosen(choose(fleet(prefill(draining=True), both("b0"))))[1:] == ("b0", Mode.LOCAL, "only_both")


def test_o25_only_those_that_have_the_adapter_are_paired():
    def with_adapter(seen):
        return Seen(replace(seen.instance, aliases=("lora",)))

    folded = fleet(prefill("p0"), with_adapter(prefill("p1")), decode("d0"), with_adapter(decode("d1")))
    for turn in range(20):
        assert chosen(choose(folded, intake("lora"), turn))[:2] == ("p1", "d1")
    assert {chosen(choose(folded, turn=turn))[:2] for turn in range(40)} == {
        (first, second) for first in ("p0", "p1") for second in ("d0", "d1")
    }
    lonely = fleet(with_adapter(prefill("p0")), decode("d0"))
    assert refused(choose(lonely, intake("lora"))) is NoDecode
    assert not lonely.pools["lora"].serves and lonely.pools["m"].serves
    assert refused(choose(lonely, intake("other"))) is ModelUnknown


@pytest.mark.parametrize("mode", [*Mode, None])
@pytest.mark.parametrize(
    ("seen", "split", "alone"),
    [
        ([prefill(), decode()], True, True),
        ([decode()], False, True),
        ([decode(kv=False)], False, True),
        ([prefill()], False, False),
        ([decode(draining=True)], False, False),
        ([both()], True, True),
    ],
)
def test_what_can_be_served_is_what_would_be_placed(mode, seen, split, alone):
    desk, folded = Desk(Rules(mode=mode)), fleet(*seen)
    expected = split if mode in (Mode.PUSH, Mode.PULL) else alone
    assert desk.serves(folded.pools["m"]) is expected
    assert list(desk.serving(folded)) == ["m"] * expected
    assert isinstance(desk.choose(folded, intake(), 1, frozenset()), Placement) is expected


@pytest.mark.parametrize(("mode", "ready"), [(Mode.PUSH, False), (Mode.PULL, True), (Mode.LOCAL, True), (None, True)])
def test_pairs_that_can_only_pull_are_none_to_push(mode, ready):
    desk, folded = Desk(Rules(mode=mode)), fleet(prefill(modes=(Mode.PULL,)), decode(modes=(Mode.PULL,)))
    assert desk.serves(folded.pools["m"]) is ready
    assert isinstance(desk.choose(folded, intake(), 1, frozenset()), Placement) is ready
    assert ("in push mode" in desk.why_idle(folded)) is not ready and bool(desk.why_idle(folded)) is not ready


@pytest.mark.parametrize(
    ("seen", "mode", "why"),
    [
        ([], Mode.PUSH, "No engine is live"),
        ([decode()], Mode.PUSH, "No prefill instance is live for 'm'"),
        ([prefill()], Mode.LOCAL, "No decode instance is live for 'm'"),
        ([decode(aliases=("lora",)), decode("d1", model="n")], Mode.PUSH, "for 'm'; start one or try again later. No"),
    ],
)
def test_why_nothing_can_be_served_is_said_once_for_each_model(seen, mode, why):
    told = Desk(Rules(mode=mode)).why_idle(fleet(*seen))
    assert why in told and "lora" not in told


RESPONSES = {"endpoints": ("/v1/responses",)}


def going_on(previous=b'"resp_1"'):
    return intake(whole="/v1/responses", previous=previous)


def test_a_request_that_goes_on_from_an_answer_goes_to_who_holds_it():
    folded = fleet(prefill(), *(decode(f"d{number}", **RESPONSES) for number in range(3)))
    desk = Desk(Rules())
    refusal = desk.choose(folded, going_on(), 1, frozenset())
    assert refused(refusal) is BadRequest and refusal.error.param == "previous_response_id"
    desk.responses.learn(folded.pools["m"].members[1].instance, b'{"id":"resp_1"}', streamed=False)
    for turn in range(6):
        assert chosen(desk.choose(folded, going_on(), turn, frozenset()))[1] == "d1"
    assert refused(desk.choose(folded, going_on(), 1, frozenset({"d1"}))) is NoDecode
    assert chosen(desk.choose(folded, intake(whole="/v1/responses"), 1, frozenset()))[0] is None


def test_where_one_engine_has_responses_it_holds_them():
    folded = fleet(prefill(), decode("d0", **RESPONSES), decode("d1"))
    assert chosen(choose(folded, going_on()))[1] == "d0"


def test_ranks_of_one_server_are_weighed_each_by_itself():
    def rank(number):
        seen = prefill(f"p0#dp{number}")
        kv = replace(seen.instance.kv, dp_rank=number)
        return Seen(replace(seen.instance, url="http://p0:8000", kv=kv, dp_size=2))

    folded = fleet(rank(0), rank(1), decode())
    first, second = folded.pools["m"].pairings[Mode.PUSH].prefills
    assert (first.lines, second.lines) == (b"x-data-parallel-rank: 0\r\n", b"x-data-parallel-rank: 1\r\n")
    first.burden.take(10)
    assert {chosen(choose(folded, turn=turn))[0] for turn in range(20)} == {"p0#dp1"}


LONG = b"x" * 40_000
"""Some 10,000 tokens: 1.27 s as long as nothing is learned."""


def late_desk(lead_s=0.1, mode: Mode | None = Mode.PUSH) -> Desk:
    return Desk(Rules(mode, learns=True, late=LateChoice(lead_s)))


@pytest.mark.parametrize("mode", [Mode.PUSH, None])
def test_decode_is_left_open_until_shortly_before_prefills_expected_end(mode):
    folded = fleet(prefill(), decode())
    placement = late_desk(mode=mode).choose(folded, intake(body=LONG), 0, NOBODY)
    if mode is None:  # short and unknown prompts are local; these are not
        assert placement.reason == "long"
    assert placement.prefill is not None and placement.decode is None and placement.mode is Mode.PUSH
    expected_s = placement.prefill.burden.pace.prefill.at(10_001)
    assert placement.decode_after_s == pytest.approx(expected_s / 2 - 0.1)
    folded.members[1].burden.take(50_000)  # at prefill, whose queue counts
    assert late_desk().choose(folded, intake(body=LONG), 0, NOBODY).decode_after_s > 3 * placement.decode_after_s


@pytest.mark.parametrize(
    ("desk", "request_", "mode"),
    [
        (late_desk(lead_s=2.0), intake(body=LONG), Mode.PUSH),
        (late_desk(), intake(), Mode.PUSH),
        (late_desk(mode=Mode.PULL), intake(body=LONG), Mode.PULL),
        (late_desk(), intake(body=LONG, whole="n"), Mode.LOCAL),
        (Desk(Rules()), intake(body=LONG), Mode.PUSH),
    ],
)
def test_decode_is_chosen_at_once_where_that_costs_no_blocks_or_nobody_wants_it_late(desk, request_, mode):
    placement = desk.choose(fleet(prefill(), decode()), request_, 0, NOBODY)
    assert placement.mode is mode and placement.decode is not None and placement.decode_after_s == 0.0


def test_nobody_to_take_the_kv_is_said_before_anything_is_computed():
    assert refused(late_desk().choose(fleet(prefill()), intake(body=LONG), 0, NOBODY)) is NoDecode


def test_a_late_decode_is_one_of_the_fleet_as_it_is_by_then():
    desk, request = late_desk(), intake(body=LONG)
    open_ = desk.choose(fleet(prefill(), decode("d0")), request, 0, NOBODY)
    complete = desk.complete(fleet(prefill(), decode("d1"), decode("d2", compat="other")), request, open_, NOBODY)
    assert chosen(complete) == ("p0", "d1", Mode.PUSH, "configured") and complete.decode_after_s == 0.0
    assert (open_.decode, complete.ahead_tokens) == (None, open_.ahead_tokens), "who holds the open one sees no change"


def test_late_decodes_take_turns():
    desk, request = Desk(Rules(learns=True, late=LateChoice(0.1), decode_policy=round_robin)), intake(body=LONG)
    folded = fleet(prefill(), decode("d0"), decode("d1"))
    open_ = desk.choose(folded, request, 0, NOBODY)
    assert len({chosen(desk.complete(folded, request, open_, NOBODY))[1] for _ in range(2)}) == 2


@pytest.mark.parametrize("now", [(prefill(draining=True), decode()), (decode(),)])
def test_a_prefill_that_drains_or_has_left_still_finds_a_decode(now):
    desk, request = late_desk(), intake(body=LONG)
    open_ = desk.choose(fleet(prefill(), decode()), request, 0, NOBODY)
    assert chosen(desk.complete(fleet(*now), request, open_, NOBODY))[:2] == ("p0", "d0")


@pytest.mark.parametrize(
    "now", [(), (prefill(),), (prefill(), decode(draining=True)), (prefill(), decode(compat="other"))]
)
def test_a_decode_that_is_gone_when_it_is_needed_is_missed(now):
    desk, request = late_desk(), intake(body=LONG)
    open_ = desk.choose(fleet(prefill(), decode()), request, 0, NOBODY)
    assert refused(desk.complete(fleet(*now), request, open_, NOBODY)) is NoDecode
    assert refused(desk.complete(fleet(prefill(), decode()), request, open_, frozenset({"d0"}))) is NoDecode


def test_how_well_prefills_end_was_told_is_learned():
    desk, request = late_desk(lead_s=0.0), intake(body=LONG)
    for _ in range(30 * LEAST_KNOWN):
        open_ = desk.choose(fleet(prefill(), decode()), request, 0, NOBODY)
        open_.prefill.burden.pace.prefill.slope = 1e-4
        open_.prefill.burden.pace.prefill.base = 0.0
        desk.learn(open_, 10_000, served(prefilled_s=0.81))
    assert desk.rules.late.after_s(1.0) == pytest.approx(0.8), "all needed 0.8 of what was expected"


def test_prefill_is_told_who_served_the_turn_before():
    desk = Desk(Rules(keepers=Keepers(), prefill_policy=round_robin, decode_policy=round_robin))
    folded = fleet(prefill("p0"), prefill("p1"), decode("d0"), decode("d1"))
    turns = [intake(prompt=b'"' + b"x" * size) for size in (1000, 3000, 5000)]
    first, second, third = (desk.choose(folded, turn, number, NOBODY) for number, turn in enumerate(turns))
    assert first.keeper is None and second.keeper is first.decode and third.keeper is second.decode
    assert desk.choose(folded, intake(prompt=b'"' + b"y" * 5000), 3, NOBODY).keeper is None
    out = frozenset({third.decode.instance.instance_id})
    assert desk.choose(folded, turns[2], 4, out).keeper is not third.decode
    assert Desk(Rules()).choose(folded, turns[1], 0, NOBODY).keeper is None


def test_a_turn_that_ran_on_decode_alone_is_kept_there_as_well():
    desk, folded = Desk(Rules(keepers=Keepers())), fleet(prefill(), decode())
    whole = desk.choose(folded, intake(whole="n", prompt=b'"' + b"x" * 1000), 0, NOBODY)
    assert desk.choose(folded, intake(prompt=b'"' + b"x" * 2000), 1, NOBODY).keeper is whole.decode


def test_a_decode_that_was_chosen_late_is_the_one_that_keeps():
    desk = Desk(Rules(keepers=Keepers(), learns=True, late=LateChoice(0.1)))
    request = intake(body=LONG, prompt=b'"' + b"x" * 2000)
    open_ = desk.choose(fleet(prefill(), decode("d0")), request, 0, NOBODY)
    now = fleet(prefill(), decode("d1"))
    late = desk.complete(now, request, open_, NOBODY)
    assert desk.choose(now, request, 1, NOBODY).keeper is late.decode


def test_a_plain_prefill_is_told_of_nobody():
    plain = {"engine": EngineKind.VLLM, "modes": (Mode.PUSH,)}
    desk, folded = Desk(Rules(keepers=Keepers())), fleet(prefill(**plain), decode(**plain))
    for turn in range(2):
        assert desk.choose(folded, intake(prompt=b'"' + b"x" * 2000), turn, NOBODY).keeper is None
