"""PrefillDesk: every registration is answered, leases are renewed, and time abandons only what nobody writes for."""

import pytest

from engine_shim.core.prefill_effects import Acknowledge, FreeKV, FreeSeats, Walked, Write
from engine_shim.core.push import Chunk
from engine_shim.core.rendezvous import PrefillClocks, PrefillDesk
from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode
from router.contract.notices import LANDED, Cancelled, Moved, Queued
from router.contract.rendezvous import Arrival, JoinState, PrefillDone, Registration

P, D, T = EngineId("p@1"), EngineId("d@2"), TransferId("req-1.1")
SEATED = Registration(T, Mode.PUSH, D, P, (5, 6), 0, 20)
DONE = PrefillDone(T, (1, 2), 20)


@pytest.fixture
def desk() -> PrefillDesk:
    return PrefillDesk(PrefillClocks(lease_for_s=30.0, seat_wait_for_s=60.0, tombstone_for_s=120.0))


def test_a_registration_is_acknowledged_each_time_it_comes(desk: PrefillDesk) -> None:
    assert desk.on_registered(SEATED, 0.0) == [
        Walked(T, Arrival.REGISTERED, JoinState.SEATED, ""),
        Acknowledge(T, D),
    ]
    assert desk.on_registered(SEATED, 1.0) == [Acknowledge(T, D)]


def test_a_match_orders_one_write_however_often_the_seats_are_registered(desk: PrefillDesk) -> None:
    desk.on_prefilled(DONE, 0.0)
    writes = [
        effect for now in range(5) for effect in desk.on_registered(SEATED, float(now)) if isinstance(effect, Write)
    ]
    assert writes == [Write(SEATED, DONE, Chunk(0, 20, 0, 1, early=False))]


def test_a_registration_behind_a_complete_write_hears_landed(desk: PrefillDesk) -> None:
    desk.on_prefilled(DONE, 0.0)
    desk.on_registered(SEATED, 0.0)
    desk.on_written(T, "", 1.0)
    assert desk.on_registered(SEATED, 2.0) == [FreeSeats(T, D, LANDED, begun=True)]


def test_a_registration_for_what_failed_before_a_write_hears_that_nothing_had_begun(desk: PrefillDesk) -> None:
    desk.on_abandoned(T, "engine_down", 0.0)
    assert desk.on_registered(SEATED, 1.0) == [FreeSeats(T, D, "engine_down", begun=False)]


def test_a_failed_write_says_that_it_had_begun(desk: PrefillDesk) -> None:
    desk.on_prefilled(DONE, 0.0)
    desk.on_registered(SEATED, 0.0)
    effects = desk.on_written(T, "transfer_failed", 1.0)
    assert effects[1:] == [FreeSeats(T, D, "transfer_failed", begun=True), FreeKV(T)]


def test_notices_for_what_is_over_are_counted(desk: PrefillDesk) -> None:
    assert desk.on_queued(Queued(T, P, D), 0.0) == []
    desk.on_registered(SEATED, 0.0)
    assert desk.late == 0, "nothing was over yet"
    desk.on_abandoned(T, "engine_down", 1.0)
    desk.on_queued(Queued(T, P, D), 2.0)
    desk.on_cancelled(Cancelled(T, P, D), 2.0)
    desk.on_moved(Moved(T, P, D, ""), 2.0)
    assert desk.late == 3
    desk.on_registered(SEATED, 2.0)
    assert desk.late == 4
    assert desk.state_of(T) is JoinState.VOID


def test_another_registration_for_the_same_transfer_is_a_fault(desk: PrefillDesk) -> None:
    desk.on_registered(SEATED, 0.0)
    other = Registration(T, Mode.PUSH, D, P, (7, 8), 0, 20)
    assert desk.on_registered(other, 0.1) == []
    assert desk.faults == 1


def test_a_queued_decode_renews_the_lease_and_silence_ends_it(desk: PrefillDesk) -> None:
    desk.on_prefilled(DONE, 0.0)
    for now in range(5, 100, 5):
        assert desk.on_queued(Queued(T, P, D), float(now)) == []
        assert desk.on_tick(float(now)) == []
    assert desk.on_tick(125.0) == []
    assert FreeKV(T) in desk.on_tick(125.2)


def test_a_queued_decode_hears_that_its_prefill_failed(desk: PrefillDesk) -> None:
    assert desk.on_queued(Queued(T, P, D), 0.0) == [], "nobody knows of it yet"
    desk.on_abandoned(T, "engine_down", 1.0)
    assert desk.on_queued(Queued(T, P, D), 2.0) == [FreeSeats(T, D, "engine_down", begun=False)]


def test_leases_end_one_by_one_whatever_came_before_them(desk: PrefillDesk) -> None:
    """Case B12: a renewed lease in front, and a later ticket with an earlier end behind it."""
    a, b, c = (TransferId(f"req-{name}.1") for name in "abc")
    for transfer_id in (a, b, c):
        desk.on_prefilled(PrefillDone(transfer_id, (1,), 10), 0.0)
    for now in range(1, 40):
        desk.on_queued(Queued(a, P, D), float(now))
        desk.on_tick(float(now))
    assert [desk.state_of(one) for one in (a, b, c)] == [JoinState.FILLED, JoinState.VOID, JoinState.VOID]


def test_a_cancel_is_answered_even_for_a_transfer_that_nobody_knows(desk: PrefillDesk) -> None:
    assert desk.on_cancelled(Cancelled(T, P, D), 0.0)[-1] == FreeSeats(T, D, "cancelled", begun=False)
    assert not desk.on_leg(T, 0.1), "the prefill leg that comes later must not start"


def test_the_death_of_decode_abandons_its_seats_and_frees_no_kv_under_a_write(desk: PrefillDesk) -> None:
    desk.on_registered(SEATED, 0.0)
    assert desk.state_of(T) is JoinState.SEATED
    desk.on_peer_dead(D, 1.0)
    assert desk.state_of(T) is JoinState.VOID

    other = TransferId("req-2.1")
    desk.on_prefilled(PrefillDone(other, (3,), 20), 0.0)
    desk.on_registered(Registration(other, Mode.PUSH, D, P, (5, 6), 0, 20), 0.0)
    assert desk.on_peer_dead(D, 1.0) == []
    assert desk.state_of(other) is JoinState.MATCHED
