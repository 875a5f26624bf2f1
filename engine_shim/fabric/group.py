"""FabricGroup: numbered ranks that write to each other over one Fabric each: scatter to all, and a barrier.

    group.connect(cards)            all other ranks can be written
    group.scatter(slices)           a WRITE for each slice, and its tag once its bytes have landed
    number = group.arrive()         every other rank is told that this one has come so far
    group.missing(number)           who has not come so far yet

Nothing waits here: `poll` moves everything forward, and whoever waits says for how long. A barrier says that its ranks
have come, and of copies only this: who arrives when nothing of his is `busy` has all of it landed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from engine_shim.core.transfer_plan import Span, TransferPlan
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, Fabric, PeerName
from router.contract.errors import PeerGone, TransferError
from router.contract.kv import Region

_ARRIVED = struct.Struct("<8sQ")
_MARK = b"arrived:"


@dataclass(frozen=True, slots=True)
class RankCard:
    """What a rank tells the others, so that they can write to it."""

    metadata: bytes
    region: Region


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of our Region for one rank, and where it belongs in that rank's."""

    rank: int
    source: int
    """Offset in our Region, bytes."""
    target: int
    """Offset in the other's, bytes."""
    num_bytes: int
    """0: only the tag."""
    tag: bytes


@dataclass(slots=True)
class FabricGroup:
    """One rank's end."""

    fabric: Fabric
    region: Region
    """Registered with `fabric`."""
    rank: int
    gone: set[int] = field(default_factory=set)
    """Ranks that are known to be dead, or that were written to without a card."""
    _names: dict[int, PeerName] = field(default_factory=dict)
    _ranks: dict[PeerName, int] = field(default_factory=dict)
    _regions: dict[int, Region] = field(default_factory=dict)
    _posted: dict[CopyKey, int] = field(default_factory=dict)
    _keys: count[int] = field(default_factory=lambda: count(1))
    _arrived: int = 0
    _seen: dict[int, int] = field(default_factory=dict)
    """The last barrier at which each rank has arrived."""

    def card(self) -> RankCard:
        """What the others need for `connect`."""
        return RankCard(self.fabric.metadata(), self.region)

    def connect(self, cards: Mapping[int, RankCard]) -> None:
        """All other ranks can be written. Raises HandshakeFailed."""
        for rank, card in cards.items():
            if rank != self.rank:
                name = self.fabric.add_peer(card.metadata)
                self._names[rank], self._ranks[name], self._regions[rank] = name, rank, card.region

    def scatter(self, slices: Sequence[Slice]) -> None:
        """All of them are on their way; a rank that cannot be reached is in `gone`.

        A slice without bytes is a bare notice, since what a backend makes of an empty WRITE is its own affair.
        """
        for one in slices:
            if one.rank in self.gone:
                continue
            try:
                if one.rank not in self._names:
                    raise PeerGone(f"Rank {one.rank} has never been connected.")
                self._send(one)
            except TransferError:
                self.gone.add(one.rank)

    def arrive(self) -> int:
        """The number of the barrier at which this rank now is; all others are told."""
        self._arrived += 1
        tag = _ARRIVED.pack(_MARK, self._arrived)
        self.scatter([Slice(rank, 0, 0, 0, tag) for rank in sorted(self._names)])
        return self._arrived

    def missing(self, number: int) -> frozenset[int]:
        """Connected ranks that have not arrived at barrier `number`, dead ones too."""
        return frozenset(rank for rank in self._names if self._seen.get(rank, 0) < number)

    def poll(self) -> list[tuple[int, bytes]]:
        """Move everything forward; the tags that are new, each with the rank that sent it."""
        told = []
        for name, notice in self.fabric.advance():
            rank = self._ranks.get(name)
            if rank is None:
                continue
            if len(notice) == _ARRIVED.size and notice.startswith(_MARK):
                self._seen[rank] = max(self._seen.get(rank, 0), _ARRIVED.unpack(notice)[1])
            else:
                told.append((rank, notice))
        for key, rank in list(self._posted.items()):
            self._settle(key, rank)
        return told

    @property
    def busy(self) -> frozenset[int]:
        """Ranks to which a slice of ours needs more polls before it has landed and been told."""
        return frozenset(self._posted.values())

    def close(self) -> None:
        """The agent is gone."""
        for key in self._posted:
            self.fabric.release(key)
        self._posted.clear()
        self.fabric.close()

    def _send(self, one: Slice) -> None:
        name, key = self._names[one.rank], CopyKey(next(self._keys))
        if not one.num_bytes:
            self.fabric.notify(name, one.tag)
            return
        plan = TransferPlan((Span(one.source, one.target, one.num_bytes),))
        self.fabric.post(CopyOrder(key, CopyOp.WRITE, name, plan, self._regions[one.rank], one.tag))
        self._posted[key] = one.rank

    def _settle(self, key: CopyKey, rank: int) -> None:
        state = self.fabric.poll(key)
        if state is CopyState.BUSY:
            return
        self.fabric.release(key)
        del self._posted[key]
        if state is CopyState.FAILED:
            self.gone.add(rank)
