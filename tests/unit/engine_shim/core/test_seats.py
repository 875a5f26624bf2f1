"""SeatDesk: what is said again and when, who ends a wait, and when seats may be used again."""

from typing import Any

import pytest

from engine_shim.core.decode_effects import Fail, FreeSeats, KVReady, SendCancelled, SendQueued, SendRegistration
from engine_shim.core.receive import Landing
from engine_shim.core.seat_ticket import SeatState
from engine_shim.core.seats import DecodeClocks, SeatDesk
from router.contract.errors import KVWaitTimeout, PeerGone, RegistrationTimeout, TandemError, TransferFailed
from router.contract.ids import EngineId, Epoch, TransferId, digest_of
from router.contract.instance import Mode
from router.contract.notices import LANDED, Acknowledged, Granted, Stopped
from router.contract.rendezvous import PrefillDone, Registration
from router.contract.tags import Tag
from router.contract.wire import Waits

P, D, T = EngineId("p@1"), EngineId("d@2"), TransferId("req-1.1")
SEATS = (5, 6)
REGISTRATION = Registration(T, Mode.PUSH, D, P, SEATS, 0, 20)
TAG = Tag(digest_of(T), Epoch(1), 0, 1, 0, 1)
CLOCKS = DecodeClocks(
    kv_wait_for_s=30.0,
    registration_for_s=40.0,
    resend_after_s=1.0,
    renew_every_s=2.0,
    settle_for_s=1.0,
    tag_wait_for_s=2.0,
)


def stopped(reason: str = "engine_down", *, begun: bool = False) -> Stopped:
    return Stopped(T, P, D, reason, begun)


def freed_at(desk: SeatDesk, first: float) -> float:
    """When ticks of a quarter second free the seats, seconds."""
    for quarter in range(100):
        if FreeSeats(T) in desk.on_tick(first + quarter / 4):
            return first + quarter / 4
    raise AssertionError("never freed")


def codes(effects: list[Any]) -> list[str]:
    """Errors by code, other effects by name."""
    return [one.error.code if isinstance(one, Fail) else type(one).__name__ for one in effects]


@pytest.fixture
def queued() -> SeatDesk:
    desk = SeatDesk(D, CLOCKS)
    assert desk.open(T, Mode.PUSH, (P, Epoch(1)), 0.0)
    return desk


@pytest.fixture
def waiting(queued: SeatDesk) -> SeatDesk:
    assert queued.on_seated(T, SEATS, (0, 20), 0.0) == [SendRegistration(REGISTRATION)]
    return queued


def test_a_transfer_id_serves_once(queued: SeatDesk) -> None:
    assert not queued.open(T, Mode.PUSH, (P, Epoch(1)), 1.0)


def test_a_queued_leg_keeps_prefills_kv_alive(queued: SeatDesk) -> None:
    told = [now for now in range(10) if queued.on_tick(float(now)) == [SendQueued(T, P)]]
    assert told == [1, 3, 5, 7, 9]


def test_seats_are_registered_again_for_as_long_as_decode_waits(waiting: SeatDesk) -> None:
    told = [now for now in range(8) if waiting.on_tick(float(now)) == [SendRegistration(REGISTRATION)]]
    assert told == [1, 3, 5, 7]
    assert waiting.on_acknowledged(Acknowledged(T, P, D)) == []
    assert waiting.state_of(T) is SeatState.WAITING


def test_what_is_cached_is_told_until_it_is_acknowledged(queued: SeatDesk) -> None:
    nothing = Registration(T, Mode.PUSH, D, P, SEATS, 20, 20)
    assert queued.on_seated(T, SEATS, (20, 20), 0.0) == [SendRegistration(nothing)]
    assert queued.on_tick(1.0) == [SendRegistration(nothing)]
    assert queued.on_left(T, 1.5) == []
    assert queued.on_acknowledged(Acknowledged(T, P, D)) == []
    assert queued.num_open == 0


def test_landed_kv_is_ready_once(waiting: SeatDesk) -> None:
    assert waiting.on_tag(TAG, 2.0) == [KVReady(T)]
    assert waiting.on_tag(TAG, 2.1) == []
    assert waiting.num_open == 0


def test_the_deadline_fails_the_request_and_keeps_the_seats(waiting: SeatDesk) -> None:
    effects = waiting.on_tick(30.1)
    assert codes(effects) == [KVWaitTimeout.code, "SendCancelled"]
    assert waiting.num_quarantined(P) == 2
    for now in range(32, 1000):
        assert codes(waiting.on_tick(float(now))) in ([], ["SendCancelled"]), "no clock ends the quarantine"
    assert waiting.on_stopped(stopped(begun=False), 1000.0) == [FreeSeats(T)]


def test_seats_are_waited_for_no_longer_than_their_deadline(queued: SeatDesk) -> None:
    assert codes(queued.on_tick(40.0)) == ["SendQueued"]
    assert codes(queued.on_tick(40.1)) == [RegistrationTimeout.code, "SendCancelled"]
    assert queued.on_seated(T, SEATS, (0, 20), 41.0) == [FreeSeats(T)]
    assert queued.num_open == 0


@pytest.mark.parametrize(
    ("asked", "seats_s", "kv_s"), [(Waits(), 40.0, 30.0), (Waits(2.0, 3.0), 2.0, 3.0), (Waits(99.0, 99.0), 40.0, 30.0)]
)
def test_a_leg_may_ask_for_less_never_for_more(asked: Waits, seats_s: float, kv_s: float) -> None:
    for seated_at in (None, 1.0):
        desk = SeatDesk(D, CLOCKS)
        desk.open(T, Mode.PUSH, (P, Epoch(1)), 0.0, asked)
        ends_at = seats_s
        if seated_at is not None:
            desk.on_seated(T, SEATS, (0, 20), seated_at)
            ends_at = seated_at + kv_s
        assert not any(isinstance(effect, Fail) for effect in desk.on_tick(ends_at))
        (failed, _) = desk.on_tick(ends_at + 0.01)
        assert isinstance(failed, Fail)
        assert f"within {seats_s if seated_at is None else kv_s:g} s" in failed.error.message


def test_seats_of_a_writer_that_had_begun_settle_first(waiting: SeatDesk) -> None:
    assert codes(waiting.on_stopped(stopped(begun=True), 5.0)) == [TransferFailed.code]
    assert waiting.state_of(T) is SeatState.SETTLING
    assert waiting.on_stopped(stopped(begun=True), 5.5) == []
    assert freed_at(waiting, 5.5) == 6.5
    assert waiting.num_open == 0


def test_time_in_which_nobody_polled_settles_nothing(waiting: SeatDesk) -> None:
    waiting.on_stopped(stopped(begun=True), 5.0)
    assert [waiting.on_tick(now) for now in (5.1, 900.0)] == [[], []]
    assert waiting.on_tick(900.5) == [FreeSeats(T)]


def test_a_tag_that_comes_while_seats_settle_ends_that(waiting: SeatDesk) -> None:
    waiting.on_stopped(stopped(begun=True), 5.0)
    assert waiting.on_tag(TAG, 5.1) == [FreeSeats(T)]


def test_a_lost_tag_is_noticed_soon_after_prefill_says_landed(waiting: SeatDesk) -> None:
    assert waiting.on_stopped(stopped(LANDED, begun=True), 5.0) == []
    assert waiting.on_stopped(stopped(LANDED, begun=True), 6.0) == []
    assert codes(waiting.on_tick(6.9)) in ([], ["SendRegistration"])
    assert codes(waiting.on_tick(7.1)) == [TransferFailed.code]
    assert freed_at(waiting, 7.25) == 8.25


def test_a_tag_behind_the_word_landed_still_counts(waiting: SeatDesk) -> None:
    waiting.on_stopped(stopped(LANDED, begun=True), 5.0)
    assert waiting.on_tag(TAG, 5.2) == [KVReady(T)]


def test_a_leg_that_gives_up_after_landed_waits_for_nobody(waiting: SeatDesk) -> None:
    waiting.on_stopped(stopped(LANDED, begun=True), 5.0)
    assert waiting.on_left(T, 5.1) == []
    assert freed_at(waiting, 5.25) == 6.25


def test_a_dead_prefill_fails_the_request_and_its_seats_wait_for_its_access_to_end(waiting: SeatDesk) -> None:
    assert codes(waiting.on_peer_dead(P, 3.0)) == [PeerGone.code]
    assert waiting.on_peer_dead(P, 3.0) == []
    assert waiting.num_quarantined(P) == 2
    assert waiting.on_access_ended(EngineId("p@9")) == []
    assert waiting.on_access_ended(P) == [FreeSeats(T)]
    assert waiting.num_open == 0


def test_seats_that_come_after_the_leg_has_left_are_free_at_once(queued: SeatDesk) -> None:
    assert queued.on_left(T, 1.0) == [SendCancelled(T, P)]
    assert queued.on_seated(T, SEATS, (0, 20), 1.1) == [FreeSeats(T)]
    assert queued.num_open == 0


def test_an_error_of_prefill_reaches_a_leg_without_seats(queued: SeatDesk) -> None:
    effects = queued.on_stopped(stopped("lease_ended"), 2.0)
    assert codes(effects) == [TransferFailed.code, "FreeSeats"]
    failed = effects[0]
    assert isinstance(failed, Fail) and isinstance(failed.error, TandemError)
    assert "lease_ended" in failed.error.message


def test_a_read_that_failed_settles_before_its_seats_are_used_again() -> None:
    desk = SeatDesk(D, CLOCKS)
    desk.open(T, Mode.PULL, (P, Epoch(1)), 0.0)
    desk.on_seated(T, SEATS, (0, 20), 0.0)
    assert codes(desk.on_granted(Granted(PrefillDone(T, (1, 2), 20), P, D))) == ["Read"]
    assert desk.on_stopped(stopped(), 1.0) == [], "our READ runs"
    assert codes(desk.on_read_ended(T, TransferFailed("broken"))) == ["SendMoved", TransferFailed.code]
    assert desk.state_of(T) is SeatState.SETTLING
    assert freed_at(desk, 2.0) == 3.0


def test_what_cannot_happen_changes_nothing(waiting: SeatDesk) -> None:
    assert waiting.on_seated(T, (7, 8), (0, 20), 1.0) == []
    assert waiting.on_read_ended(T, None) == []
    assert waiting.state_of(T) is SeatState.WAITING


def test_a_tag_before_the_seats_is_stale(queued: SeatDesk) -> None:
    assert queued.on_tag(TAG, 1.0) == []
    assert queued.landings[Landing.STALE] == 1
    assert queued.state_of(T) is SeatState.QUEUED


def test_notices_of_nobody_are_counted_and_change_nothing(queued: SeatDesk) -> None:
    other = TransferId("req-9.1")
    assert queued.on_acknowledged(Acknowledged(other, P, D)) == []
    assert queued.on_stopped(Stopped(other, P, D, "x", False), 1.0) == []
    assert queued.late == 2
    assert queued.on_left(other, 1.0) == []
    assert queued.on_seated(other, SEATS, (0, 20), 1.0) == [FreeSeats(other)]
    assert queued.on_read_ended(other, None) == []
