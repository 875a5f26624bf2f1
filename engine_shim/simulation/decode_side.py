"""Decode's half of the driver in the simulated world: the SeatDesk's effects, carried out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from engine_shim.core.decode_effects import (
    DecodeEffect,
    Fail,
    FreeSeats,
    KVReady,
    Read,
    SendCancelled,
    SendMoved,
    SendQueued,
    SendRegistration,
)
from engine_shim.core.seat_ticket import SeatState
from engine_shim.core.seats import DecodeClocks
from engine_shim.simulation.ablations import new_seat_desk
from engine_shim.simulation.copies import CopyOrder
from engine_shim.simulation.prefill_side import note_copy, tell_peer
from engine_shim.simulation.story import Invariant, request_in
from router.contract.errors import StaleAttempt, TandemError, TransferFailed
from router.contract.ids import EngineId, Epoch, TransferId
from router.contract.notices import Acknowledged, Cancelled, Granted, Moved, Queued, Registered, Stopped
from router.contract.rendezvous import PrefillDone, Registration
from router.contract.tags import Tag
from router.contract.wire import DecodeHandoff

if TYPE_CHECKING:
    from engine_shim.simulation.shim import Shim


@dataclass(slots=True)
class _Watch:
    """What the world knows of a leg that waits, beside its desk."""

    overdue_at: float
    """When it has waited for too long, for its seats and then for its KV."""
    kv_s: float
    """How long it may wait for its KV."""


class DecodeSide:
    """Steps the SeatDesk and runs its effects to the end."""

    def __init__(self, shim: Shim) -> None:
        pace = shim.scene.pace
        self._shim = shim
        self._watches: dict[TransferId, _Watch] = {}
        self.desk = new_seat_desk(shim.engine_id, DecodeClocks(pace.kv_wait_s, pace.registration_s), shim.scene.off)

    def open(self, handoff: DecodeHandoff) -> TandemError | None:
        """This transfer is awaited, or why not."""
        engine_id = handoff.prefill_engine_id
        prefill = (engine_id, Epoch(int(engine_id.partition("@")[2])))
        scene = self._shim.scene
        if self.desk.open(handoff.transfer_id, handoff.mode, prefill, scene.now, handoff.waits):
            seats_s = min(scene.pace.registration_s, handoff.waits.registration_s)
            kv_s = min(scene.pace.kv_wait_s, handoff.waits.kv_s)
            self._watches[handoff.transfer_id] = _Watch(scene.now + seats_s, kv_s)
            return None
        return StaleAttempt("This transfer_id is in use; each attempt needs a fresh one.")

    def on_seated(self, transfer_id: TransferId, seats: tuple[int, ...], wanted: tuple[int, int]) -> None:
        """The engine reserved seats."""
        self._shim.tell(f"Seated {seats}", transfer_id)
        self._visit(transfer_id, "Seated")
        watch = self._watches.get(transfer_id)
        if watch is not None:
            watch.overdue_at = self._shim.scene.now + watch.kv_s
        self._run(self.desk.on_seated(transfer_id, seats, wanted, self._shim.scene.now))

    def on_left(self, transfer_id: TransferId) -> None:
        """The sequence is over; its seats may not be free yet."""
        self._visit(transfer_id, "Left")
        self._run(self.desk.on_left(transfer_id, self._shim.scene.now))

    def on_tag(self, transfer_id: TransferId, tag: Tag) -> None:
        """A WRITE has landed."""
        self._shim.tell(f"tag {tag.seq + 1} of {tag.total}", transfer_id)
        self._visit(transfer_id, "Tag")
        self._run(self.desk.on_tag(tag, self._shim.scene.now))

    def on_notice(self, notice: Acknowledged | Granted | Stopped) -> None:
        """Prefill has something to say."""
        what = f"hears {type(notice).__name__}" + (f" ({notice.reason})" if isinstance(notice, Stopped) else "")
        self._shim.tell(what, notice.transfer_id)
        self._visit(notice.transfer_id, type(notice).__name__)
        match notice:
            case Acknowledged():
                self._run(self.desk.on_acknowledged(notice))
            case Granted():
                self._run(self.desk.on_granted(notice))
            case Stopped():
                self._run(self.desk.on_stopped(notice, self._shim.scene.now))

    def on_peer_dead(self, engine_id: EngineId) -> None:
        """A prefill engine's process is dead; what it had sent may still land."""
        self._run(self.desk.on_peer_dead(engine_id, self._shim.scene.now))

    def on_access_ended(self, engine_id: EngineId) -> None:
        """Nothing of that prefill engine can land any more."""
        self._run(self.desk.on_access_ended(engine_id))

    def on_tick(self) -> None:
        """Time has passed."""
        shim = self._shim
        self._run(self.desk.on_tick(shim.scene.now))
        overdue_at = shim.scene.now - 2 * shim.scene.pace.tick_s
        for transfer_id, watch in list(self._watches.items()):
            state = self.desk.state_of(transfer_id)
            if state not in (SeatState.WAITING, SeatState.QUEUED):
                del self._watches[transfer_id]
            elif watch.overdue_at < overdue_at:
                del self._watches[transfer_id]
                awaited = "seats" if state is SeatState.QUEUED else "KV"
                what = f"{transfer_id} waits for {awaited} longer than its deadline"
                shim.scene.violate(Invariant.BOUNDED_WAIT, request_in(transfer_id), what)

    def _visit(self, transfer_id: TransferId, event: str) -> None:
        """Count a row of the SeatDesk."""
        self._shim.scene.counts[f"SEATS {self.desk.state_of(transfer_id)} {event}"] += 1

    def _run(self, effects: Iterable[DecodeEffect]) -> None:
        shim = self._shim
        for effect in effects:
            match effect:
                case SendRegistration(registration):
                    shim.tell("says Registered", registration.transfer_id)
                    shim.scene.on_moment("registered", shim.name)
                    tell_peer(shim, registration.prefill_engine_id, Registered(registration))
                case SendQueued(transfer_id, prefill_engine_id):
                    shim.tell("says Queued", transfer_id)
                    tell_peer(shim, prefill_engine_id, Queued(transfer_id, prefill_engine_id, shim.engine_id))
                case SendCancelled(transfer_id, prefill_engine_id):
                    shim.tell("says Cancelled", transfer_id)
                    shim.scene.on_moment("cancelled", shim.name)
                    tell_peer(shim, prefill_engine_id, Cancelled(transfer_id, prefill_engine_id, shim.engine_id))
                case SendMoved(transfer_id, prefill_engine_id, error):
                    shim.tell(f"says Moved {error}", transfer_id)
                    tell_peer(shim, prefill_engine_id, Moved(transfer_id, prefill_engine_id, shim.engine_id, error))
                case Read(registration, done):
                    self._read(registration, done)
                case KVReady(transfer_id):
                    shim.tell("KVReady", transfer_id)
                    shim.engine.kv_ready(transfer_id)
                    shim.recall.on_kv_ready(transfer_id)
                case FreeSeats(transfer_id):
                    shim.tell("frees seats", transfer_id)
                    shim.engine.unpin(transfer_id)
                case Fail(transfer_id, cause):
                    shim.tell(f"fails: {cause.code}", transfer_id)
                    shim.on_kv_failure(transfer_id, cause)

    def _read(self, registration: Registration, done: PrefillDone) -> None:
        shim, transfer_id = self._shim, registration.transfer_id
        if not shim.acquaintances.is_known(registration.prefill_engine_id):
            self._run(self.desk.on_read_ended(transfer_id, TransferFailed("Prefill is not known.")))
            return
        note_copy(shim, transfer_id)
        shim.tell("posts READ", transfer_id)
        prefill = shim.copies.find(registration.prefill_engine_id)
        pieces = tuple(zip(done.blocks, registration.seats, strict=True))
        source, target = (prefill or shim).engine.pool, shim.engine.pool
        on_end = partial(self._on_read_ended, transfer_id)
        shim.copies.post(CopyOrder(transfer_id, shim, prefill, source, target, pieces, on_end))

    def _on_read_ended(self, transfer_id: TransferId, error: TandemError | None) -> None:
        self._visit(transfer_id, "ReadEnded")
        self._run(self.desk.on_read_ended(transfer_id, error))
