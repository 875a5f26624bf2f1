"""Whoever is chosen, in whatever fleet and by whatever policy, may be chosen, and nobody is refused without need."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from router.contract.instance import Instance, Load, Mode, Role
from router.core.fleet import Fleet
from router.core.pairing import feeds
from router.core.placement import Desk, Placement, Rules
from router.core.policy_table import AFFINE_NAMES, POLICY_NAMES, decode_policy, prefill_policy
from tests.support.instances import Seen, fleet, instance, intake

MODELS = ("m", "lora")
modes = st.sampled_from([(Mode.PUSH,), (Mode.PULL,), (Mode.PUSH, Mode.PULL)])


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    seen = []
    for number in range(draw(st.integers(2, 8))):
        one = instance(
            f"i{number}",
            draw(st.sampled_from([Role.PREFILL, Role.PREFILL, Role.DECODE, Role.DECODE, Role.BOTH])),
            compat=draw(st.sampled_from("aaab")),
            modes=draw(modes),
            draining=draw(st.integers(0, 9)) == 5,
            kv=draw(st.integers(0, 9)) != 5,
        )
        aliases = draw(st.sampled_from([("lora",), ()]))
        one = replace(one, zone=draw(st.sampled_from(["", "x", "y"])), aliases=aliases)
        seen.append(Seen(one, Load(running_seqs=draw(st.integers(0, 20)), free_blocks=draw(st.integers(0, 9)))))
    return fleet(*seen)


requests = st.builds(
    intake,
    model=st.sampled_from(MODELS),
    whole=st.sampled_from(["", "", "n"]),
    body=st.sampled_from([b"x" * 8, b"x" * 4000, b"x" * 9000]),
    prompt=st.sampled_from([b"", b"x" * 600, b"y" * 5000]),
    session=st.sampled_from([b"", b"s", b"t"]),
    allowed=st.sampled_from(
        [None, None, frozenset({Mode.PUSH, Mode.PULL}), frozenset({Mode.PULL}), frozenset({Mode.LOCAL})]
    ),
)
rules = st.builds(
    lambda mode, prefill, decode, crossover: Rules(
        mode,
        prefill_policy=prefill_policy(prefill),
        decode_policy=decode_policy(decode),
        decode_first=decode in AFFINE_NAMES,
        crossover_tokens=crossover,
        learns="cost" in (prefill, decode),
    ),
    st.sampled_from([None, None, None, *Mode]),
    st.sampled_from(POLICY_NAMES),
    st.sampled_from(POLICY_NAMES),
    st.sampled_from([0, 300]),
)


def may_serve(one: Instance, model: str, excluded: frozenset[str]) -> bool:
    return model in one.names and not one.draining and one.instance_id not in excluded


@given(
    fleets(),
    st.lists(requests, min_size=1, max_size=6),
    rules,
    st.sampled_from([frozenset(), frozenset({"i0"}), frozenset({"i0", "i1"})]),
)
@settings(max_examples=120, deadline=None)
def test_who_is_chosen_may_be_chosen_and_who_could_be_served_is(folded, asked, ruled, excluded) -> None:
    desk = Desk(ruled)
    able = [member.instance for member in folded.members]
    for turn, request in enumerate(asked):
        choice = desk.choose(folded, request, turn, excluded)
        solos = [one for one in able if may_serve(one, request.model, excluded) and one.role.decodes]
        if not isinstance(choice, Placement):
            local = request.allowed is None or Mode.LOCAL in request.allowed
            assert not (solos and local and (ruled.mode in (None, Mode.LOCAL) or request.whole))
            continue
        decode = choice.decode.instance
        assert may_serve(decode, request.model, excluded) and decode.role.decodes
        if choice.prefill is None:
            assert choice.mode is Mode.LOCAL
        else:
            prefill = choice.prefill.instance
            assert may_serve(prefill, request.model, excluded) and prefill.role.prefills
            assert prefill is not decode and feeds(prefill, decode, choice.mode)
            assert not request.whole or request.allowed is not None
        assert request.allowed is None or choice.mode in request.allowed
