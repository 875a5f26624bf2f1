"""The target's half of staged copies: slots are lent, and what lands in them is scattered before its tag is told."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from engine_shim.core.staging import GRANULE_LEAST_BYTES, GRANULE_MOST_BYTES, INDEX_BYTES
from engine_shim.fabric.copier import Job
from engine_shim.fabric.port import PeerName
from engine_shim.fabric.ring import Ring
from engine_shim.fabric.stage_notes import StageNote, Word, pack_slots

Say = Callable[[PeerName, StageNote], None]
Notices = list[tuple[PeerName, bytes]]


@dataclass(slots=True)
class _Loan:
    """One copy that passes through slots of ours."""

    num_chunks: int
    slots: set[int]
    scattered: set[int] = field(default_factory=set)
    tag: bytes = b""


@dataclass(frozen=True, slots=True)
class _Scatter:
    job: Job
    peer: PeerName
    note: StageNote


class Incoming:
    """Loans by (peer, its number of the copy)."""

    def __init__(self, ring: Ring, say: Say) -> None:
        self._ring = ring
        self._say = say
        self._loans: dict[tuple[PeerName, int], _Loan] = {}
        self._scatters: deque[_Scatter] = deque()

    def on_note(self, peer: PeerName, note: StageNote) -> None:
        """Ask, Landed or Back of a peer; what fits no loan changes nothing."""
        loan = self._loans.get((peer, note.key))
        if note.word is Word.ASK and loan is None:
            self._lend(peer, note)
        elif note.word is Word.BACK and loan is not None:
            self._end_unsafely(self._loans.pop((peer, note.key)))
        elif note.word is Word.LANDED and loan is not None and self._fits(loan, note):
            offset = self._ring.offset(note.slot)
            job = self._ring.copier.scatter(note.num_rows, note.granule_bytes, offset)
            self._scatters.append(_Scatter(job, peer, note))

    def advance(self) -> Notices:
        """Ended scatters are answered; returns the tags of copies that are complete."""
        complete: Notices = []
        while self._scatters and self._scatters[0].job.done():
            scatter = self._scatters.popleft()
            peer, note = scatter.peer, scatter.note
            loan = self._loans.get((peer, note.key))
            if loan is None:
                continue
            loan.scattered.add(note.chunk)
            loan.tag = loan.tag or note.tag
            if len(loan.scattered) == loan.num_chunks:
                del self._loans[peer, note.key]
                for slot in loan.slots:
                    self._ring.incoming.give_back(slot)
                if loan.tag:
                    complete.append((peer, loan.tag))
            self._say(peer, StageNote(Word.DONE, note.key, slot=note.slot, chunk=note.chunk))
        return complete

    def drop(self, peer: PeerName) -> None:
        """Nothing of this peer is scattered from now on, and no scatter of its bytes is under way."""
        for scatter in self._scatters:
            if scatter.peer == peer:
                scatter.job.wait()
        self._scatters = deque(scatter for scatter in self._scatters if scatter.peer != peer)
        for owner, key in [loan for loan in self._loans if loan[0] == peer]:
            self._end_unsafely(self._loans.pop((owner, key)))

    def _lend(self, peer: PeerName, note: StageNote) -> None:
        slots = {
            slot for _ in range(min(note.num_chunks, self._fair())) if (slot := self._ring.incoming.take()) is not None
        }
        if not slots:
            self._say(peer, StageNote(Word.FULL, note.key))
            return
        self._loans[peer, note.key] = _Loan(note.num_chunks, slots)
        self._say(peer, StageNote(Word.LEND, note.key, tag=pack_slots(slots)))

    def _fair(self) -> int:
        """Half of what is free, so that the next copy finds some too."""
        return -(-self._ring.incoming.num_free // 2)

    def _fits(self, loan: _Loan, note: StageNote) -> bool:
        granule = note.granule_bytes
        sized = GRANULE_LEAST_BYTES <= granule <= GRANULE_MOST_BYTES and not granule & (granule - 1)
        inside = note.num_rows * (granule + INDEX_BYTES) <= self._ring.card.slot_bytes
        return sized and inside and note.slot in loan.slots and note.chunk < loan.num_chunks

    def _end_unsafely(self, loan: _Loan) -> None:
        for slot in loan.slots:
            self._ring.incoming.lay_to_rest(slot)
