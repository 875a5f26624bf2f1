"""In which mode a request is served, and why."""

import pytest

from router.contract.errors import NoDecode, NoPair, NoPrefill
from router.contract.instance import Mode
from router.core.placement import Desk, Placement, Rules
from router.core.prefix import PrefixAffinity
from tests.support.instances import both, decode, fleet, intake, prefill
from tests.support.placements import NOBODY, PULLING, choose, chosen, mixed, refused

ASKED = "asked"


@pytest.mark.parametrize(
    ("folded", "request_", "rules", "reason"),
    [
        (fleet(prefill(), decode()), intake(), {"mode": Mode.LOCAL}, "configured"),
        (fleet(prefill(), decode()), intake(whole="n"), {}, "n"),
        (fleet(prefill(), decode()), intake(body=b"x" * 99), {"local_below_bytes": 100}, "short"),
        (fleet(both("d0")), intake(), {}, "only_both"),
    ],
)
def test_local_has_its_reason(folded, request_, rules, reason):
    assert chosen(choose(folded, request_, **rules)) == (None, "d0", Mode.LOCAL, reason)


def test_a_body_at_the_limit_is_not_short():
    assert chosen(choose(fleet(prefill(), decode()), intake(body=b"x" * 100), local_below_bytes=100))[2] is Mode.PUSH


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
        ({Mode.PUSH, Mode.PULL}, {"local_below_bytes": 10**6}, (Mode.PUSH, ASKED)),
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
