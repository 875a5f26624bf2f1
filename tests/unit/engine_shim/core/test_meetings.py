import pytest

from engine_shim.core.meetings import Durations, Meetings
from engine_shim.core.prefill_effects import Walked
from router.contract.ids import TransferId
from router.contract.rendezvous import Arrival, JoinState


def walk(meetings: Meetings, name: str, *steps: tuple[JoinState, float]) -> None:
    for state, at in steps:
        meetings.on_walked(Walked(TransferId(name), Arrival.REGISTERED, state, ""), at)


def test_who_came_first_waits_for_the_other():
    meetings = Meetings()
    walk(meetings, "a", (JoinState.SEATED, 1.0), (JoinState.MATCHED, 1.25), (JoinState.LANDED, 1.5))
    walk(meetings, "b", (JoinState.FILLED, 1.0), (JoinState.MATCHED, 3.0), (JoinState.LANDED, 3.125))
    assert meetings.first == {"registered": 1, "prefilled": 1}
    assert meetings.waits["decode"].total_s == 0.25 and meetings.waits["prefill"].total_s == 2.0
    assert meetings.moved.total_s == 0.375 and sum(meetings.moved.counts) == 2
    assert meetings.num_open == 0


@pytest.mark.parametrize("last", [JoinState.VOID, JoinState.DRAINING])
def test_what_ends_badly_is_forgotten(last):
    meetings = Meetings()
    walk(meetings, "a", (JoinState.SEATED, 1.0), (last, 2.0))
    walk(meetings, "b", (JoinState.SEATED, 1.0), (JoinState.MATCHED, 2.0), (last, 3.0), (JoinState.VOID, 4.0))
    assert (meetings.num_open, sum(meetings.moved.counts)) == (0, 0)


def test_a_bucket_includes_its_bound():
    durations = Durations()
    durations.add(0.0005)
    durations.add(100.0)
    assert durations.buckets()[0] == ("0.0005", 1.0)
    assert durations.buckets()[-2:] == [("30.0", 1.0), ("+Inf", 2.0)]
