"""The mover's half of staged copies: gather into a slot of ours, WRITE it into a slot of the peer, hear that it is out.

A Passage ends as DONE when the peer has scattered every chunk. It ends as FAILED only when nothing of it can land any
more: none of its WRITEs is under way, and every chunk that did land has been answered; or the peer has been dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from engine_shim.core.staging import INDEX_BYTES, Chunk, StagedPlan
from engine_shim.core.transfer_plan import Span, TransferPlan
from engine_shim.fabric.copier import Columns, Job
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, Fabric
from engine_shim.fabric.ring import Ring, RingCard
from engine_shim.fabric.stage_notes import StageNote, Word, unpack_slots
from router.contract.errors import TransferError

CHUNK_LEAST_BYTES = 128 << 20
"""A copy is cut so that gather, WRITE and scatter overlap. A chunk costs about as much host work
as so many bytes take on a wire of 300 GB/s (deploy/benchmarks); smaller ones cost more than they save."""

Label = Callable[[StageNote], bytes]
"""A note to the passage's peer as sealed bytes."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A chunk in a slot of ours."""

    number: int
    slot: int
    num_rows: int


@dataclass(slots=True)
class Passage:
    """One staged copy."""

    order: CopyOrder
    theirs: RingCard
    plan: StagedPlan
    chunks: list[Chunk]
    columns: Columns | None = None
    """Where the copier reads the plan's columns, from the first gather to the last."""
    lent: deque[int] = field(default_factory=deque)
    """Slots of the peer that we may write now."""
    gathering: deque[tuple[Job, _Stretch]] = field(default_factory=deque)
    writing: dict[CopyKey, _Stretch] = field(default_factory=dict)
    unanswered: set[int] = field(default_factory=set)
    """Chunks that landed, or may land, and that the peer has not scattered yet."""
    next_chunk: int = 0
    was_lent: bool = False
    failed: bool = False
    is_told: bool = False
    """Its end has been told."""

    @property
    def state(self) -> CopyState:
        """See Fabric.poll."""
        if self.gathering or self.writing or self.unanswered:
            return CopyState.BUSY
        if self.failed:
            return CopyState.FAILED
        return CopyState.DONE if self.next_chunk == len(self.chunks) else CopyState.BUSY


class Outgoing:
    """Drives passages through our ring."""

    def __init__(self, inner: Fabric, ring: Ring) -> None:
        self._inner = inner
        self._ring = ring
        # The inner fabric sees the driver's keys too, which count upwards from 1.
        self._keys = count(-1, -1)

    def slot_bytes(self, theirs: RingCard) -> int:
        """What fits a slot of ours and a slot of theirs."""
        return min(self._ring.card.slot_bytes, theirs.slot_bytes)

    def open(self, order: CopyOrder, staged: StagedPlan, theirs: RingCard) -> Passage | None:
        """A passage that can begin; None when no slot is free."""
        if not self._ring.outgoing.num_free:
            return None
        split = staged.num_bytes // CHUNK_LEAST_BYTES
        return Passage(order, theirs, staged, staged.chunks(self.slot_bytes(theirs), split))

    def begin(self, passage: Passage) -> None:
        """Its first chunk is being gathered."""
        passage.columns = self._ring.copier.take_up(passage.plan)
        self._gather(passage, passage.columns)

    def on_note(self, passage: Passage, note: StageNote) -> None:
        """Lend or Done of the passage's peer."""
        if note.word is Word.LEND:
            passage.was_lent = True
            passage.lent += unpack_slots(note.tag)
        elif note.word is Word.DONE and note.chunk in passage.unanswered:
            passage.unanswered.remove(note.chunk)
            passage.lent.append(note.slot)

    def drive(self, passage: Passage, label: Label) -> CopyState:
        """Move the passage on as far as it goes now. Raises nothing; what fails ends as FAILED."""
        for key, stretch in list(passage.writing.items()):
            self._look(passage, key, stretch)
        while passage.gathering and passage.lent and passage.gathering[0][0].done() and not passage.failed:
            self._write(passage, passage.gathering.popleft()[1], label)
        if passage.failed:
            self._let_go(passage)
        elif passage.columns is not None:
            # After the WRITEs, whose wire must not wait for a launch.
            self._gather(passage, passage.columns)
        return passage.state

    def abandon(self, passage: Passage) -> None:
        """The peer is gone: nothing is waited for, and our slots are free."""
        passage.failed = True
        passage.unanswered.clear()
        for key, stretch in passage.writing.items():
            self._inner.release(key)
            self._ring.outgoing.lay_to_rest(stretch.slot)
        passage.writing.clear()
        self._let_go(passage)

    def _gather(self, passage: Passage, columns: Columns) -> None:
        """One more chunk, if there is one and a slot for it."""
        if passage.next_chunk == len(passage.chunks):
            if not passage.gathering:
                self._put_down(passage)
            return
        slot = self._ring.outgoing.take()
        if slot is None:
            return
        chunk = passage.chunks[passage.next_chunk]
        job = columns.gather(chunk, self._ring.offset(slot))
        passage.gathering.append((job, _Stretch(passage.next_chunk, slot, chunk.num_rows)))
        passage.next_chunk += 1

    def _write(self, passage: Passage, stretch: _Stretch, label: Label) -> None:
        theirs = passage.lent.popleft()
        size = stretch.num_rows * (passage.plan.granule_bytes + INDEX_BYTES)
        span = Span(self._ring.offset(stretch.slot), theirs * passage.theirs.slot_bytes, size)
        last = stretch.number == len(passage.chunks) - 1
        note = StageNote(
            Word.LANDED,
            passage.order.key,
            slot=theirs,
            chunk=stretch.number,
            num_chunks=len(passage.chunks),
            num_rows=stretch.num_rows,
            granule_bytes=passage.plan.granule_bytes,
            tag=passage.order.tag if last else b"",
        )
        key = CopyKey(next(self._keys))
        plan, ours = TransferPlan((span,)), self._ring.card.region
        order = CopyOrder(key, CopyOp.WRITE, passage.order.peer, plan, passage.theirs.region, label(note), local=ours)
        passage.writing[key] = stretch
        passage.unanswered.add(stretch.number)
        try:
            state = self._inner.post(order)
        except TransferError:
            self._end_write(passage, key, stretch, failed=True)
            return
        if state is not CopyState.BUSY:
            self._end_write(passage, key, stretch, failed=state is CopyState.FAILED)

    def _look(self, passage: Passage, key: CopyKey, stretch: _Stretch) -> None:
        state = self._inner.poll(key)
        if state is not CopyState.BUSY:
            self._end_write(passage, key, stretch, failed=state is CopyState.FAILED)

    def _end_write(self, passage: Passage, key: CopyKey, stretch: _Stretch, failed: bool) -> None:
        del passage.writing[key]
        self._inner.release(key)
        self._ring.outgoing.give_back(stretch.slot)
        if failed:
            # Its tag is never sent, so no answer comes.
            passage.unanswered.discard(stretch.number)
            passage.failed = True

    def _let_go(self, passage: Passage) -> None:
        for job, stretch in passage.gathering:
            job.wait()
            self._ring.outgoing.give_back(stretch.slot)
        passage.gathering.clear()
        self._put_down(passage)

    @staticmethod
    def _put_down(passage: Passage) -> None:
        if passage.columns is not None:
            passage.columns.let_go()
            passage.columns = None
