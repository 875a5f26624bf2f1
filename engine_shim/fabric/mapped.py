"""Mapped copies: one kernel moves every piece straight into the peer's cache, or out of it, then the tag is sent.

It needs neither a slot nor anything of the peer. A copy is DONE when its kernel has ended and its tag is on its way, so
a copy that is over changes nothing any more; who drops a peer first waits for the kernels under way, which last
milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine_shim.core.staging import StagedPlan
from engine_shim.fabric.copier import Columns, Copier, Job
from engine_shim.fabric.mapping import Mapper
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, Fabric, PeerName
from router.contract.errors import PeerGone
from router.contract.kv import Region


@dataclass(slots=True)
class _Move:
    order: CopyOrder
    columns: Columns
    job: Job
    state: CopyState = CopyState.BUSY


class Mapped:
    """Copies towards peers whose caches we can address."""

    def __init__(self, inner: Fabric, region: Region, copier: Copier, mapper: Mapper) -> None:
        self._inner = inner
        self._base = region.base
        self._copier = copier
        self._mapper = mapper
        self._bases: dict[PeerName, int] = {}
        self._moves: dict[CopyKey, _Move] = {}

    def meet(self, peer: PeerName, card: bytes) -> None:
        """The peer can be reached, if its cache can."""
        if peer not in self._bases:
            base = self._mapper.open(card)
            if base is not None:
                self._bases[peer] = base

    def drop(self, peer: PeerName) -> None:
        """Nothing of ours touches the peer's cache any more; its copies have FAILED."""
        for move in self._moves.values():
            if move.order.peer == peer and move.state is CopyState.BUSY:
                move.job.wait()
                self._end(move, CopyState.FAILED)
        base = self._bases.pop(peer, None)
        if base is not None:
            self._mapper.close(base)

    def reaches(self, peer: PeerName) -> bool:
        """True when copies to this peer can go this way."""
        return peer in self._bases

    def has(self, key: CopyKey) -> bool:
        """True for a copy that went this way and was not released."""
        return key in self._moves

    def begin(self, order: CopyOrder, plan: StagedPlan) -> CopyState:
        """The copy has begun; its plan lies within both caches."""
        columns = self._copier.take_up(plan)
        theirs = self._bases[order.peer]
        bases = (self._base, theirs) if order.op is CopyOp.WRITE else (theirs, self._base)
        self._moves[order.key] = _Move(order, columns, columns.move(*bases))
        return CopyState.BUSY

    def poll(self, key: CopyKey) -> CopyState:
        """See Fabric."""
        move = self._moves[key]
        if move.state is CopyState.BUSY and move.job.done():
            self._end(move, self._tell(move.order))
        return move.state

    def release(self, key: CopyKey) -> None:
        """See Fabric."""
        del self._moves[key]

    def _tell(self, order: CopyOrder) -> CopyState:
        if not order.tag:
            return CopyState.DONE
        try:
            self._inner.notify(order.peer, order.tag)
        except PeerGone:
            return CopyState.FAILED
        return CopyState.DONE

    def _end(self, move: _Move, state: CopyState) -> None:
        move.state = state
        move.columns.let_go()
