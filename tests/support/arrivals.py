"""What the walkers of JOIN have in common in tests: traces and what they add up to."""

from __future__ import annotations

from hypothesis import strategies as st

from router.contract.rendezvous import Arrival, JoinEffect, JoinState, join

traces = st.lists(st.sampled_from(Arrival), max_size=30)


def walked(trace: list[Arrival] | tuple[Arrival, ...]) -> list[tuple[Arrival, JoinState, tuple[JoinEffect, ...]]]:
    """The steps of a trace; an arrival without a row leaves the state as it is and orders nothing."""
    state, steps = JoinState.EMPTY, []
    for arrival in trace:
        state, effects = join(state, arrival) or (state, ())
        steps.append((arrival, state, effects))
    return steps
