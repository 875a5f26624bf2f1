"""HandOver: everything of a shim that deals with other shims: peers, mail, copies, and both sides of the Rendezvous."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from time import monotonic

from engine_shim.core.fates import Fate
from engine_shim.core.meetings import Meetings
from engine_shim.core.prefill_effects import Walked
from engine_shim.core.receive import Landing
from engine_shim.core.rendezvous import PrefillDesk
from engine_shim.core.seats import SeatDesk
from engine_shim.driver.copies import Copies
from engine_shim.driver.decode_side import DecodeShell, DecodeSide
from engine_shim.driver.mail import Mail
from engine_shim.driver.peers import Peers
from engine_shim.driver.prefill_side import PrefillShell, PrefillSide
from engine_shim.engine.port import Purpose, SequenceRequest
from engine_shim.fabric.port import PeerName
from engine_shim.fabric.writer import CopyEnded, Expect, NoticeCame, PeerLost, TransferEvent, Writer
from router.contract.errors import RegistrationTimeout, TandemError
from router.contract.ids import EngineId, TransferId
from router.contract.notices import Acknowledged, Granted, Left, Refused, Stopped
from router.contract.rendezvous import PrefillDone
from router.contract.seal import Seal
from router.contract.tags import Tag

_IGNORED = (Landing.REPEATED, Landing.STALE, Landing.FAULT)
"""Tags that make no KV ready."""


class KVFailure(StrEnum):
    """What becomes of a decode request whose KV cache does not come."""

    FAIL = "fail"
    """It fails at once, so that the router can try another pair."""
    RECOMPUTE = "recompute"
    """Decode computes the prompt itself, at the cost of those who decode beside it."""


@dataclass(frozen=True, slots=True)
class Desks:
    """The parts that a HandOver works with; made by `build`."""

    peers: Peers
    writer: Writer
    seal: Seal
    prefill: PrefillDesk
    decode: SeatDesk
    on_walked: Callable[[Walked], None]
    """A Rendezvous has moved; for the ledger."""
    kv_failure: KVFailure = KVFailure.FAIL
    on_recompute: Callable[[TransferId, TandemError], None] = lambda _transfer_id, _error: None
    """A prompt is computed on decode because its KV cache did not come; for the ledger."""
    on_noted: Callable[[TransferId, str], None] = lambda _transfer_id, _stage: None
    """`computed`: prefill holds all of the KV; `kv_ready`: decode does. For the ledger: between them, decode waited."""
    progressive: bool = True
    """Prefill's engine tells of each chunk, so that pushes begin before it is done."""
    layers_from_tokens: int = 0
    """It tells of layers, too, while a last chunk of at least so many tokens is computed; 0: it does not."""


@dataclass(frozen=True, slots=True)
class EngineCalls:
    """What the two sides ask of the engine."""

    recompute: Callable[[TransferId], None]
    """Decode computes this prompt itself."""
    unpin_prefill: Callable[[TransferId], None]
    unpin_decode: Callable[[TransferId], None]
    kv_ready: Callable[[TransferId], None]
    fail_decode: Callable[[TransferId, TandemError], None]


class HandOver:
    """Belongs to the Driver's event loop; every fact is handled to its end without waiting."""

    def __init__(self, desks: Desks, engine: EngineCalls) -> None:
        self.peers = desks.peers
        self.copies = Copies(desks.writer)
        self._writer = desks.writer
        self._mail = Mail(desks.peers.card.engine_id, desks.seal, desks.writer)
        self._expected = False
        self._engine = engine
        self._kv_failure, self._on_recompute = desks.kv_failure, desks.on_recompute
        self._progressive, self._layers_from_tokens = desks.progressive, desks.layers_from_tokens
        self.num_recomputed = 0
        """Prompts that were computed on decode because their KV cache did not come."""
        self.num_lent = 0
        """Scratch seats that a peer may write in a self-test."""
        self.meetings = Meetings()
        self._tell_ledger, self._note = desks.on_walked, desks.on_noted
        self.prefill = PrefillSide(
            desks.prefill,
            PrefillShell(self.peers, self.copies, self._mail, engine.unpin_prefill, self._on_walked, monotonic),
        )
        self.decode = DecodeSide(
            desks.decode,
            DecodeShell(
                self.peers,
                self.copies,
                self._mail,
                self._on_kv_ready,
                engine.unpin_decode,
                self._on_kv_failure,
                monotonic,
            ),
        )
        desks.peers.news.on_died = self._on_died
        desks.peers.news.on_access_ended = self.decode.on_access_ended

    @property
    def num_open_tickets(self) -> int:
        """Rendezvous that hold or want something here."""
        return self.prefill.desk.num_open + self.decode.desk.num_open

    @property
    def num_orphaned_blocks(self) -> int:
        """Quarantined seats whose writer cannot be reached: only its answer or proof of its death frees them."""
        return sum(self.decode.desk.num_quarantined(peer) for peer in self.peers.with_fate(Fate.LOST))

    def counts(self) -> dict[str, int]:
        """What has gone wrong between this engine and others so far, by name."""
        prefill, decode = self.prefill.desk, self.decode.desk
        return {
            **self.peers.counts,
            **{f"notice_{reason}": count for reason, count in self._mail.refused.items()},
            **{f"tag_{landing}": decode.landings[landing] for landing in _IGNORED},
            "notice_late": prefill.late + decode.late,
            "faults": prefill.faults,
            "recomputed": self.num_recomputed,
        }

    def on_fabric_event(self, event: TransferEvent) -> None:
        """What the writer thread saw."""
        match event:
            case NoticeCame(peer, notice):
                self._on_notice(peer, notice)
            case CopyEnded():
                self.copies.on_ended(event)
            case PeerLost(peer):
                self.peers.on_lost(EngineId(peer))
        self.expect()

    def on_tick(self) -> None:
        """Time has passed."""
        self.prefill.on_tick()
        self.decode.on_tick()
        self.peers.on_tick()
        self.expect()

    def expect(self) -> None:
        """The writer polls quickly while any Rendezvous is open or scratch is lent."""
        expected = self.num_open_tickets > 0 or self.num_lent > 0
        if expected is not self._expected:
            self._expected = expected
            self._writer.tell(Expect(int(expected)))

    def say_left(self) -> None:
        """Peers hear that nothing of this engine runs any more, if that is so."""
        if self.copies.num_live:
            return
        for engine_id in self.peers.known():
            self._mail.tell(engine_id, Left(self.peers.card.engine_id))

    def _on_notice(self, peer: PeerName, raw: bytes) -> None:
        read = self._mail.read(peer, raw)
        if read is not None and not isinstance(read, Tag) and not self.peers.may_speak(EngineId(peer)):
            # It could open a Rendezvous that nothing would ever end: the fate of its sender is not watched (any more).
            self._mail.refused[Refused.NOT_MET] += 1
            return
        match read:
            case None:
                return
            case Tag() as tag:
                self.decode.on_tag(tag)
            case Left(engine_id):
                self.peers.on_death(engine_id, "left")
            case Acknowledged() | Granted() | Stopped() as notice:
                self.decode.on_notice(notice)
            case notice:
                self.prefill.on_notice(notice)

    def hold(self, request: SequenceRequest) -> SequenceRequest:
        """The request as prefill's engine is to run it."""
        return replace(
            request,
            purpose=Purpose.HOLD,
            in_parts=self._progressive,
            layers_from_tokens=self._layers_from_tokens if self._progressive else 0,
        )

    def on_prefilling(self, part: PrefillDone, num_layers: int) -> None:
        """The engine holds the KV of these tokens, or only its first `num_layers` layers, and goes on."""
        if num_layers:
            self.prefill.on_layers(part, num_layers)
        else:
            self.prefill.on_prefilling(part)

    def on_prefilled(self, done: PrefillDone) -> None:
        """The engine holds all of the KV."""
        if not self.prefill.desk.state_of(done.transfer_id).closed:
            self.meetings.on_done(done.transfer_id, monotonic())
            self._note(done.transfer_id, "computed")
        self.prefill.on_prefilled(done)

    def _on_kv_ready(self, transfer_id: TransferId) -> None:
        self._engine.kv_ready(transfer_id)
        self._note(transfer_id, "kv_ready")

    def _on_walked(self, walked: Walked) -> None:
        self.meetings.on_walked(walked, monotonic())
        self._tell_ledger(walked)

    def _on_kv_failure(self, transfer_id: TransferId, error: TandemError) -> None:
        # To compute the prompt here would want the room for which decode has waited in vain.
        if self._kv_failure is KVFailure.FAIL or isinstance(error, RegistrationTimeout):
            self._engine.fail_decode(transfer_id, error)
            return
        self.num_recomputed += 1
        self._engine.recompute(transfer_id)
        self._on_recompute(transfer_id, error)

    def _on_died(self, engine_id: EngineId) -> None:
        self.prefill.on_peer_dead(engine_id)
        self.decode.on_peer_dead(engine_id)
