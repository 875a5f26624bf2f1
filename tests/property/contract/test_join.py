"""What must be true of JOIN whatever arrives, in whatever order, however often."""

from itertools import pairwise, permutations, product

import pytest
from hypothesis import given

from router.contract.rendezvous import JOIN, Arrival, JoinEffect, JoinState, join
from tests.support.arrivals import traces, walked

WRITER_ENDS = (Arrival.WRITER_DONE, Arrival.WRITER_FAILED)
SEATS_GIVEN_BACK = JoinEffect.FREE_SEATS
KV_GIVEN_BACK = JoinEffect.FREE_KV


@given(traces)
def test_a_write_is_ordered_at_most_once_and_only_when_both_sides_are_known(trace: list[Arrival]) -> None:
    steps = walked(trace)
    writes = [index for index, (_, _, effects) in enumerate(steps) if JoinEffect.WRITE in effects]
    assert len(writes) <= 1
    for index in writes:
        assert {Arrival.REGISTERED, Arrival.PREFILLED} <= set(trace[: index + 1])
        assert Arrival.ABANDONED not in trace[: index + 1]


@given(traces)
def test_after_a_write_nothing_is_freed_before_the_writer_has_ended(trace: list[Arrival]) -> None:
    writing = False
    for arrival, _, effects in walked(trace):
        if arrival in WRITER_ENDS:
            writing = False
        if writing:
            assert SEATS_GIVEN_BACK not in effects
            assert KV_GIVEN_BACK not in effects
        writing = writing or JoinEffect.WRITE in effects


@given(traces)
def test_a_closed_state_stays_closed_and_is_never_left(trace: list[Arrival]) -> None:
    states = [state for _, state, _ in walked(trace)]
    for before, after in pairwise(states):
        assert after is before or not before.closed


@given(traces)
def test_landed_seats_are_never_freed(trace: list[Arrival]) -> None:
    steps = walked(trace)
    if steps and steps[-1][1] is JoinState.LANDED:
        assert all(SEATS_GIVEN_BACK not in effects for _, _, effects in steps)


@pytest.mark.parametrize("state", [state for state in JoinState if state.closed])
def test_a_closed_state_takes_every_arrival(state: JoinState) -> None:
    assert all(join(state, arrival) is not None for arrival in Arrival)


@pytest.mark.parametrize("state", list(JoinState))
def test_only_a_movers_report_before_its_match_has_no_row(state: JoinState) -> None:
    absent = {arrival for arrival in Arrival if join(state, arrival) is None}
    unmatched = state in (JoinState.EMPTY, JoinState.SEATED, JoinState.FILLED)
    assert absent == (set(WRITER_ENDS) if unmatched else set())


@pytest.mark.parametrize("state", list(JoinState))
def test_registered_and_prefilled_commute(state: JoinState) -> None:
    def both(first: Arrival, second: Arrival) -> tuple[JoinState, list[JoinEffect]]:
        middle, effects = JOIN[state, first]
        end, more = JOIN[middle, second]
        return end, sorted(effects + more)

    sides = (Arrival.REGISTERED, Arrival.PREFILLED)
    assert both(*sides) == both(*reversed(sides))


@pytest.mark.parametrize("arrival", [Arrival.REGISTERED, Arrival.PREFILLED, Arrival.ABANDONED])
@pytest.mark.parametrize("state", list(JoinState))
def test_the_same_arrival_again_changes_nothing_and_orders_only_what_is_idempotent(
    state: JoinState, arrival: Arrival
) -> None:
    once, _ = JOIN[state, arrival]
    again, effects = JOIN[once, arrival]
    assert again is once
    assert set(effects) <= {SEATS_GIVEN_BACK, KV_GIVEN_BACK}


def test_every_state_can_be_reached_and_every_state_can_be_closed() -> None:
    reached = {state for trace in product(Arrival, repeat=3) for _, state, _ in walked(trace)}
    assert reached | {JoinState.EMPTY} == set(JoinState)
    for state in JoinState:
        ends = {row[0] for arrival in Arrival if (row := join(state, arrival)) is not None}
        assert state.closed or any(end.closed or end is JoinState.DRAINING for end in ends)


@pytest.mark.parametrize("end", WRITER_ENDS)
@pytest.mark.parametrize("abandoned", [True, False])
def test_whatever_the_order_all_that_was_taken_is_given_back(end: Arrival, abandoned: bool) -> None:
    """Seats stay with decode only when the KV has landed; prefill's pin never outlives the attempt."""
    arrivals = [Arrival.REGISTERED, Arrival.PREFILLED] + [Arrival.ABANDONED] * abandoned
    for order in permutations(arrivals):
        steps = walked(order)
        if any(JoinEffect.WRITE in effects for _, _, effects in steps):
            steps = walked((*order, end))
        ordered = [effect for _, _, effects in steps for effect in effects]
        assert steps[-1][1].closed
        assert KV_GIVEN_BACK in ordered
        assert (SEATS_GIVEN_BACK in ordered) is (steps[-1][1] is JoinState.VOID)
