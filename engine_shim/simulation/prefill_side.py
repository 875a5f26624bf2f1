"""Prefill's half of the driver in the simulated world: the PrefillDesk's effects, carried out."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from engine_shim.core.prefill_effects import (
    Acknowledge,
    FreeKV,
    FreeSeats,
    Grant,
    PrefillEffect,
    StopWriter,
    Walked,
    Write,
)
from engine_shim.core.rendezvous import PrefillClocks
from engine_shim.simulation.ablations import new_prefill_desk
from engine_shim.simulation.copies import CopyOrder
from engine_shim.simulation.engine import BLOCK_TOKENS
from engine_shim.simulation.memory import ALL_LAYERS
from engine_shim.simulation.messages import Envelope
from engine_shim.simulation.story import Invariant, request_in
from router.contract.errors import PeerGone, TandemError
from router.contract.ids import EngineId, Epoch, TransferId, digest_of
from router.contract.ledger import Arrived
from router.contract.notices import Acknowledged, Cancelled, Granted, Moved, Notice, Queued, Registered, Stopped
from router.contract.rendezvous import Arrival, JoinState, PrefillDone
from router.contract.tags import Tag

if TYPE_CHECKING:
    from engine_shim.simulation.shim import Shim

MAX_PARTS = 3
"""A push at once may be posted as so many WRITEs, each with its own tag."""


def tell_peer(shim: Shim, engine_id: EngineId, notice: Notice) -> None:
    """The notice is on its way to whoever lives at that engine's address."""
    host = shim.scene.network.host(engine_id.partition("@")[0])
    shim.scene.network.notify(shim, host, Envelope(engine_id, shim.engine_id, notice))


def note_copy(shim: Shim, transfer_id: TransferId) -> None:
    """An attempt's KV begins to be copied; it must be the first time."""
    if transfer_id in shim.scene.posted:
        what = f"the KV of {transfer_id} is copied a second time, by {shim.engine_id}"
        shim.scene.violate(Invariant.WRITE_ONCE, request_in(transfer_id), what)
    shim.scene.posted.add(transfer_id)


class PrefillSide:
    """Steps the PrefillDesk and runs its effects to the end."""

    def __init__(self, shim: Shim) -> None:
        pace = shim.scene.pace
        self._shim = shim
        clocks = PrefillClocks(pace.kv_lease_s, pace.seat_wait_s, pace.tombstone_s)
        self.desk = new_prefill_desk(clocks, shim.scene.limits, shim.scene.off)
        self._states: dict[TransferId, JoinState] = {}
        """As of the last Walked."""

    def on_prefilling(self, part: PrefillDone, num_layers: int) -> None:
        """The engine holds the KV of these tokens, or only its first `num_layers` layers, and goes on."""
        what = f"{num_layers} layers" if num_layers else f"{part.num_tokens} tokens"
        self._shim.tell(f"Prefilled, first {what}", part.transfer_id)
        self._visit(part.transfer_id, Arrival.PREFILLED)
        now = self._shim.scene.now
        self._run(self.desk.on_layers(part, num_layers, now) if num_layers else self.desk.on_prefilling(part, now))

    def on_prefilled(self, done: PrefillDone) -> None:
        """The engine holds the KV."""
        self._shim.tell("Prefilled", done.transfer_id)
        self._visit(done.transfer_id, Arrival.PREFILLED)
        self._run(self.desk.on_prefilled(done, self._shim.scene.now))

    def on_leg_ended(self, transfer_id: TransferId, reason: str) -> None:
        """The leg is over before its time."""
        if not self.desk.is_complete(transfer_id):
            self._visit(transfer_id, Arrival.ABANDONED)
        self._run(self.desk.on_leg_ended(transfer_id, reason, self._shim.scene.now))

    def on_abandoned(self, transfer_id: TransferId, reason: str) -> None:
        """The leg ended badly or was taken back."""
        self._visit(transfer_id, Arrival.ABANDONED)
        self._run(self.desk.on_abandoned(transfer_id, reason, self._shim.scene.now))

    def on_notice(self, notice: Registered | Queued | Cancelled | Moved) -> None:
        """Decode has something to say."""
        now = self._shim.scene.now
        match notice:
            case Registered(registration):
                self._shim.tell("hears Registered", registration.transfer_id)
                self._visit(registration.transfer_id, Arrival.REGISTERED)
                self._run(self.desk.on_registered(registration, now))
            case Queued(transfer_id):
                self._shim.tell("hears Queued", transfer_id)
                self._run(self.desk.on_queued(notice, now))
            case Cancelled(transfer_id):
                self._shim.tell("hears Cancelled", transfer_id)
                self._visit(transfer_id, Arrival.ABANDONED)
                self._run(self.desk.on_cancelled(notice, now))
            case Moved(transfer_id, error=error):
                self._shim.tell(f"hears Moved {error}", transfer_id)
                self._visit(transfer_id, Arrival.WRITER_FAILED if error else Arrival.WRITER_DONE)
                self._run(self.desk.on_moved(notice, now))

    def on_peer_dead(self, engine_id: EngineId) -> None:
        """A decode engine's process is gone."""
        self._run(self.desk.on_peer_dead(engine_id, self._shim.scene.now))

    def on_tick(self) -> None:
        """Time has passed."""
        self._run(self.desk.on_tick(self._shim.scene.now))

    def _visit(self, transfer_id: TransferId, arrival: Arrival) -> None:
        """Count a row of JOIN."""
        self._shim.scene.counts[f"JOIN {self.desk.state_of(transfer_id)} {arrival}"] += 1

    def _run(self, effects: Iterable[PrefillEffect]) -> None:
        shim = self._shim
        for effect in effects:
            match effect:
                case Write():
                    self._write(effect)
                case Grant(registration, done):
                    decode = registration.decode_engine_id
                    tell_peer(shim, decode, Granted(done, shim.engine_id, decode))
                case FreeKV(transfer_id):
                    shim.engine.unpin(transfer_id)
                case FreeSeats(transfer_id, decode, reason, begun):
                    shim.tell(f"says Stopped ({reason})", transfer_id)
                    tell_peer(shim, decode, Stopped(transfer_id, shim.engine_id, decode, reason, begun))
                case Acknowledge(transfer_id, decode):
                    tell_peer(shim, decode, Acknowledged(transfer_id, shim.engine_id, decode))
                case StopWriter():
                    # A posted WRITE cannot be recalled: its end is what is waited for.
                    continue
                case Walked(transfer_id, arrival, state, note):
                    before, self._states[transfer_id] = self._states.get(transfer_id, JoinState.EMPTY), state
                    if arrival in (Arrival.WRITER_DONE, Arrival.WRITER_FAILED):
                        shim.scene.counts[f"JOIN {before} {arrival}"] += 1
                    shim.tell(f"{arrival}: {state} {note}", transfer_id)
                    shim.scene.on_moment(state, shim.name)
                    shim.journal.post(Arrived(transfer_id, arrival, note))
        if self.desk.faults:
            self.desk.faults = 0
            shim.scene.violate(Invariant.ROW_EXISTS, "", f"a fact without a row at {shim.engine_id}")

    def _write(self, order: Write) -> None:
        shim, chunk, registration = self._shim, order.chunk, order.registration
        transfer_id = registration.transfer_id
        if not shim.acquaintances.is_known(registration.decode_engine_id):
            self._on_written(transfer_id, PeerGone("Decode is not known."))
            return
        if chunk.seq == 0:
            note_copy(shim, transfer_id)
        decode = shim.copies.find(registration.decode_engine_id)
        touched = slice(chunk.first_token // BLOCK_TOKENS, -(-chunk.end_token // BLOCK_TOKENS))
        pieces = tuple(zip(order.done.blocks[touched], registration.seats[touched], strict=True))
        parts = 1 if shim.scene.chunk_blocks else min(shim.scene.rng.choice((1, 1, MAX_PARTS)), len(pieces))
        what = "" if chunk.layers is None else f", layers {chunk.layers.start} to {chunk.layers.stop - 1},"
        shim.tell(f"posts WRITE {chunk.seq + 1} of {chunk.total or 'several'}{what} in {parts} part(s)", transfer_id)
        shim.scene.counts["WRITE of layers"] += chunk.layers is not None
        ends: list[TandemError | None] = []
        for part in range(parts):
            seq, total = (chunk.seq, chunk.total) if parts == 1 else (part, parts)
            tag = Tag(digest_of(transfer_id), Epoch(shim.instance.epoch), 0, 1, seq, total)
            shim.copies.post(
                CopyOrder(
                    transfer_id,
                    shim,
                    decode,
                    shim.engine.pool,
                    (decode or shim).engine.pool,
                    pieces[part::parts],
                    partial(self._on_part_ended, transfer_id, ends, parts),
                    None if decode is None else partial(decode.decode.on_tag, transfer_id, tag),
                    chunk.layers or ALL_LAYERS,
                )
            )

    def _on_part_ended(
        self, transfer_id: TransferId, ends: list[TandemError | None], parts: int, error: TandemError | None
    ) -> None:
        ends.append(error)
        if len(ends) == parts:
            self._on_written(transfer_id, next((end for end in ends if end is not None), None))

    def _on_written(self, transfer_id: TransferId, error: TandemError | None) -> None:
        self._shim.scene.on_moment("written", self._shim.name)
        self._run(self.desk.on_written(transfer_id, "" if error is None else error.code, self._shim.scene.now))
