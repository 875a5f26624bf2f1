import pytest

from engine_shim.core.meetings import Durations, Meetings
from engine_shim.core.prefill_effects import Walked
from router.contract.ids import TransferId
from router.contract.rendezvous import Arrival, JoinState

A, B = TransferId("a"), TransferId("b")
REGISTERED, PREFILLED, WRITER_DONE = Arrival.REGISTERED, Arrival.PREFILLED, Arrival.WRITER_DONE


def walk(meetings: Meetings, name: TransferId, arrival: Arrival, state: JoinState, at: float) -> None:
    meetings.on_walked(Walked(name, arrival, state, ""), at)


def test_who_came_first_waits_for_the_other():
    meetings = Meetings()
    walk(meetings, A, REGISTERED, JoinState.SEATED, 1.0)
    meetings.on_done(A, 1.25)
    walk(meetings, A, PREFILLED, JoinState.MATCHED, 1.25)
    walk(meetings, A, WRITER_DONE, JoinState.LANDED, 1.5)
    meetings.on_done(B, 1.0)
    walk(meetings, B, PREFILLED, JoinState.FILLED, 1.0)
    walk(meetings, B, REGISTERED, JoinState.MATCHED, 3.0)
    walk(meetings, B, WRITER_DONE, JoinState.LANDED, 3.125)
    assert meetings.first == {"registered": 1, "prefilled": 1}
    assert meetings.waits["decode"].total_s == 0.25 and meetings.waits["prefill"].total_s == 2.0
    assert meetings.moved.total_s == 0.375 and sum(meetings.moved.counts) == 2
    assert meetings.num_open == 0


def test_a_push_that_begins_early_counts_from_the_moment_when_prefill_is_done():
    meetings = Meetings()
    walk(meetings, A, REGISTERED, JoinState.SEATED, 1.0)
    walk(meetings, A, PREFILLED, JoinState.MATCHED, 2.0)
    meetings.on_done(A, 5.0)
    walk(meetings, A, WRITER_DONE, JoinState.LANDED, 5.25)
    walk(meetings, B, PREFILLED, JoinState.FILLED, 1.0)
    walk(meetings, B, REGISTERED, JoinState.MATCHED, 3.0)
    meetings.on_done(B, 4.0)
    walk(meetings, B, WRITER_DONE, JoinState.LANDED, 4.5)
    assert meetings.first == {"registered": 2, "prefilled": 0}
    assert meetings.waits["decode"].total_s == 4.0 + 1.0
    assert meetings.moved.total_s == 0.75


@pytest.mark.parametrize("last", [JoinState.VOID, JoinState.DRAINING])
def test_what_ends_badly_is_forgotten(last):
    meetings = Meetings()
    walk(meetings, A, REGISTERED, JoinState.SEATED, 1.0)
    walk(meetings, A, Arrival.ABANDONED, last, 2.0)
    walk(meetings, B, REGISTERED, JoinState.SEATED, 1.0)
    meetings.on_done(B, 2.0)
    walk(meetings, B, PREFILLED, JoinState.MATCHED, 2.0)
    walk(meetings, B, Arrival.ABANDONED, last, 3.0)
    walk(meetings, B, Arrival.WRITER_FAILED, JoinState.VOID, 4.0)
    assert (meetings.num_open, sum(meetings.moved.counts)) == (0, 0)


def test_a_bucket_includes_its_bound():
    durations = Durations()
    durations.add(0.0005)
    durations.add(100.0)
    assert durations.buckets()[0] == ("0.0005", 1.0)
    assert durations.buckets()[-2:] == [("30.0", 1.0), ("+Inf", 2.0)]
