"""StagedFabric: a Fabric whose fragmented WRITEs go the cheapest of three ways, and whose READs of two.

    direct   piece by piece, as the Fabric that it wraps does it
    staged   one gather, a few contiguous WRITEs from ring to ring, one scatter, all three overlapping
    mapped   one kernel straight into the peer's cache, where it can be addressed (`mapped.py`); a READ, out of it

It keeps the promises of a Fabric: a tag comes after its bytes have arrived, and a copy that is DONE or FAILED changes
nothing at the target any more. Peers without a ring and WRITEs of one span go through untouched; so does a copy
for which either ring has no slot, so that a peer that holds slots and does not move costs others their speed, not
their turn. Which way is cheapest, the pair's own copies tell (`core/copy_costs.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine_shim.core.copy_costs import PairCosts, Path, Size
from engine_shim.core.staging import StagedPlan, stage
from engine_shim.fabric.mapped import Mapped
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, Fabric, PeerName
from engine_shim.fabric.ring import Ring, RingCard, split_card
from engine_shim.fabric.stage_notes import StageNote, Word, is_stage_note, read_stage_note
from engine_shim.fabric.staged_in import Incoming
from engine_shim.fabric.staged_out import Outgoing, Passage
from router.contract.errors import PeerGone, TransferFailed
from router.contract.kv import Region
from router.contract.seal import Seal

_OURS = (Word.ASK, Word.LANDED, Word.BACK)
"""What movers say to us as a target."""


@dataclass(frozen=True, slots=True)
class Staging:
    """How an agent stages."""

    ring: Ring | None
    """None: it never stages, and understands peers that would."""
    seal: Seal
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class _Timed:
    """A copy whose end teaches what the pair pays."""

    peer: PeerName
    op: CopyOp
    path: Path
    size: Size
    began_at: float


class StagedFabric:
    """See the module."""

    def __init__(self, name: str, region: Region, inner: Fabric, staging: Staging) -> None:
        self._name = PeerName(name)
        self._region = region
        self._inner = inner
        self._staging = staging
        self._rings: dict[PeerName, RingCard] = {}
        self._costs: dict[PeerName, dict[CopyOp, PairCosts]] = {}
        self._all_costs = {op: PairCosts() for op in CopyOp}
        """What all pairs together have taught: where a new pair begins."""
        self._passages: dict[CopyKey, Passage] = {}
        self._timed: dict[CopyKey, _Timed] = {}
        ring = staging.ring
        self._incoming = Incoming(ring, self._say) if ring is not None else None
        self._outgoing = Outgoing(inner, ring) if ring is not None else None
        mapper = ring.mapper if ring is not None else None
        self._mapped = Mapped(inner, region, ring.copier, mapper) if ring is not None and mapper is not None else None
        self._met: set[PeerName] = set()
        self.force: Path | None = None
        """Take this path whenever it is possible, whatever it costs; for tests and measurements."""
        self._unsaid: list[tuple[PeerName, StageNote]] = []
        self.num_refused = 0
        """Stage notes that were unreadable, forged, or of nobody we have met."""

    def metadata(self) -> bytes:
        """See Fabric; our ring's card goes before it."""
        ring = self._staging.ring
        return (ring.card.encode() if ring is not None else b"") + self._inner.metadata()

    def add_peer(self, metadata: bytes) -> PeerName:
        """See Fabric."""
        card, inner = split_card(metadata)
        peer = self._inner.add_peer(inner)
        self._met.add(peer)
        if card is not None:
            self._rings[peer] = card
            if self._mapped is not None and card.mapping:
                self._mapped.meet(peer, card.mapping)
        return peer

    def drop_peer(self, peer: PeerName) -> None:
        """See Fabric."""
        self._inner.drop_peer(peer)
        self._met.discard(peer)
        self._rings.pop(peer, None)
        self._costs.pop(peer, None)
        for passage in self._passages.values():
            if passage.order.peer == peer and self._outgoing is not None:
                self._outgoing.abandon(passage)
        if self._incoming is not None:
            self._incoming.drop(peer)
        if self._mapped is not None:
            self._mapped.drop(peer)

    def notify(self, peer: PeerName, notice: bytes) -> None:
        """See Fabric."""
        self._inner.notify(peer, notice)

    def post(self, order: CopyOrder) -> CopyState:
        """See Fabric."""
        began_at = self._staging.clock()
        theirs = self._rings.get(order.peer)
        if theirs is None or self._outgoing is None or not self._may_choose(order):
            return self._post_direct(order)
        plan = stage(order.plan, self._outgoing.slot_bytes(theirs))
        if plan is None:
            return self._post_direct(order)
        path = self._path(order, plan)
        if path is Path.DIRECT:
            return self._post_direct(order)
        sizes = self._region.num_bytes, order.remote.num_bytes
        if not plan.lies_within(*(sizes if order.op is CopyOp.WRITE else sizes[::-1])):
            raise TransferFailed("A span of the plan lies outside the registered Region.")
        if path is Path.MAPPED and self._mapped is not None:
            size = Size(plan.num_rows, plan.num_bytes)
            self._timed[order.key] = _Timed(order.peer, order.op, Path.MAPPED, size, began_at)
            return self._mapped.begin(order, plan)
        passage = self._outgoing.open(order, plan, theirs)
        if passage is None:
            return self._post_direct(order)
        self._begin(self._outgoing, passage)
        size = Size(plan.num_rows, plan.num_bytes)
        self._timed[order.key] = _Timed(order.peer, order.op, Path.STAGED, size, began_at)
        return CopyState.BUSY

    def poll(self, key: CopyKey) -> CopyState:
        """See Fabric."""
        passage = self._passages.get(key)
        if passage is None or self._outgoing is None:
            return self._learned(key, self._mover(key).poll(key))
        peer = passage.order.peer
        state = self._outgoing.drive(passage, lambda note: note.encode(self._staging.seal, self._name, peer))
        # A passage ends here or by a note of its peer's, between two polls.
        if state is not CopyState.BUSY and not passage.is_told:
            passage.is_told = True
            self._finish(passage, state)
        return state

    def release(self, key: CopyKey) -> None:
        """See Fabric."""
        self._timed.pop(key, None)
        if self._passages.pop(key, None) is None:
            self._mover(key).release(key)

    def advance(self) -> list[tuple[PeerName, bytes]]:
        """See Fabric."""
        notices = []
        for peer, raw in self._inner.advance():
            if is_stage_note(raw):
                self._on_raw_note(peer, raw)
            else:
                notices.append((peer, raw))
        if self._incoming is not None and self._staging.ring is not None:
            self._staging.ring.tend()
            notices += self._incoming.advance()
        unsaid, self._unsaid = self._unsaid, []
        for peer, note in unsaid:
            self._say(peer, note)
        return notices

    def close(self) -> None:
        """See Fabric."""
        self._inner.close()

    def _mover(self, key: CopyKey) -> Fabric | Mapped:
        return self._mapped if self._mapped is not None and self._mapped.has(key) else self._inner

    def _may_choose(self, order: CopyOrder) -> bool:
        if order.local is not None or self.force is Path.DIRECT:
            return False
        if order.op is CopyOp.READ:
            return self._mapped is not None and self._mapped.reaches(order.peer)
        return len(order.plan.spans) > 1 or self.force is not None

    def _path(self, order: CopyOrder, plan: StagedPlan) -> Path:
        """The forced path if it is possible, else the cheapest."""
        num_bytes = plan.num_bytes
        in_granules = Size(plan.num_rows, num_bytes)
        sizes = {Path.DIRECT: Size(len(order.plan.spans), num_bytes)}
        if order.op is CopyOp.WRITE:
            sizes[Path.STAGED] = in_granules
        if self._mapped is not None and self._mapped.reaches(order.peer):
            sizes[Path.MAPPED] = in_granules
        if self.force is None:
            return self._pair(order.peer)[order.op].choose(sizes)
        return self.force if self.force in sizes else Path.DIRECT

    def _pair(self, peer: PeerName) -> dict[CopyOp, PairCosts]:
        if peer not in self._costs:
            self._costs[peer] = {op: PairCosts(taught) for op, taught in self._all_costs.items()}
        return self._costs[peer]

    def _begin(self, outgoing: Outgoing, passage: Passage) -> None:
        """The peer is asked first: its answer travels while we gather. Raises PeerGone; then nothing is left."""
        order = passage.order
        self._tell(order.peer, StageNote(Word.ASK, order.key, num_chunks=len(passage.chunks)))
        self._passages[order.key] = passage
        outgoing.begin(passage)

    def _post_direct(self, order: CopyOrder) -> CopyState:
        if order.peer in self._rings:
            size = Size(len(order.plan.spans), order.plan.num_bytes)
            self._timed[order.key] = _Timed(order.peer, order.op, Path.DIRECT, size, self._staging.clock())
        try:
            state = self._inner.post(order)
        except (TransferFailed, PeerGone):
            self._timed.pop(order.key, None)
            raise
        return self._learned(order.key, state)

    def _learned(self, key: CopyKey, state: CopyState) -> CopyState:
        timed = self._timed.pop(key, None) if state is not CopyState.BUSY else None
        if timed is not None and state is CopyState.DONE:
            took_s = self._staging.clock() - timed.began_at
            for costs in (self._pair(timed.peer), self._all_costs):
                costs[timed.op].learn(timed.path, timed.size, took_s)
        return state

    def _finish(self, passage: Passage, state: CopyState) -> None:
        order = passage.order
        self._learned(order.key, state)
        if state is not CopyState.DONE and order.peer in self._met:
            self._say(order.peer, StageNote(Word.BACK, order.key))

    def _on_raw_note(self, peer: PeerName, raw: bytes) -> None:
        note = read_stage_note(raw, self._staging.seal, peer, self._name)
        if note is None or peer not in self._met:
            self.num_refused += 1
            return
        passage = self._passages.get(CopyKey(note.key))
        if note.word in _OURS:
            if self._incoming is not None:
                self._incoming.on_note(peer, note)
        elif passage is not None and passage.order.peer == peer and self._outgoing is not None:
            if note.word is Word.FULL:
                self._turn_direct(passage)
            else:
                self._outgoing.on_note(passage, note)

    def _turn_direct(self, passage: Passage) -> None:
        """The peer has no slot, and nothing has been written: the copy goes the direct way, under the same key."""
        if passage.was_lent or self._outgoing is None:
            return
        self._outgoing.abandon(passage)
        try:
            del self._passages[passage.order.key]
            self._post_direct(passage.order)
        except (TransferFailed, PeerGone):
            self._passages[passage.order.key] = passage

    def _say(self, peer: PeerName, note: StageNote) -> None:
        """The note is on its way, now or as soon as the peer can be reached; never when it has been dropped."""
        try:
            self._tell(peer, note)
        except PeerGone:
            if peer in self._met:
                self._unsaid.append((peer, note))

    def _tell(self, peer: PeerName, note: StageNote) -> None:
        self._inner.notify(peer, note.encode(self._staging.seal, self._name, peer))
