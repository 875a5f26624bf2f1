"""A Transport over a Fabric: ranks are processes, each with an agent of its own and one Region for inbox and outbox.

The agent is not the one that moves KV cache: rows of decode must not stand behind megabytes of prefill. A Put without
bytes is a bare notice, since what a backend makes of an empty WRITE is its own affair. A peer's notices are known by
its name, which is new at every start, so nothing of an earlier group is taken for ours.

The Region may lie on a GPU. What torch computes there is ordered by the current stream alone, so before a WRITE is
posted that stream is waited for: then the outbox is written, and what peers may overwrite next has been read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch

from engine_shim.core.transfer_plan import Span, TransferPlan
from engine_shim.experts.regions import Regions
from engine_shim.experts.signal import Signal, decode_signal
from engine_shim.experts.transport import Put
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, Fabric, PeerName
from router.contract.errors import TransferError
from router.contract.kv import Region


@dataclass(frozen=True, slots=True)
class RankCard:
    """What a rank tells the others, so that they can write to it."""

    metadata: bytes
    region: Region


CPU = torch.device("cpu")


def take_memory(regions: Regions, device: torch.device = CPU) -> torch.Tensor:
    """uint8 on `device`: inbox, then outbox, not initialised."""
    return torch.empty(regions.total_bytes, dtype=torch.uint8, device=device)


def region_of(memory: torch.Tensor) -> Region:
    """The Region to register."""
    return Region(memory.data_ptr(), memory.numel(), memory.device.type, memory.device.index or 0)


class FabricTransport:
    """See Transport."""

    def __init__(self, fabric: Fabric, memory: torch.Tensor, regions: Regions, rank: int) -> None:
        """`fabric` has registered `memory`, from `take_memory`."""
        self._fabric = fabric
        self._memory = memory
        self._rank = rank
        self.inbox, self.outbox = memory[: regions.inbox_bytes], memory[regions.inbox_bytes :]
        self._outbox_at = regions.inbox_bytes
        self._names: dict[int, PeerName] = {}
        self._ranks: dict[PeerName, int] = {}
        self._regions: dict[int, Region] = {}
        self._gone: set[int] = set()
        self._keys = count(1)
        self._posted: dict[CopyKey, int] = {}
        self._to_self: list[Signal] = []
        self._closed = False

    def card(self) -> RankCard:
        """What the others need for `connect`."""
        return RankCard(self._fabric.metadata(), region_of(self._memory))

    def connect(self, cards: Mapping[int, RankCard]) -> None:
        """All other ranks can be written. Raises HandshakeFailed."""
        for rank, card in cards.items():
            if rank != self._rank:
                name = self._fabric.add_peer(card.metadata)
                self._names[rank], self._ranks[name], self._regions[rank] = name, rank, card.region

    def scatter(self, puts: Sequence[Put]) -> None:
        """See Transport."""
        if self._memory.is_cuda and any(put.num_bytes for put in puts):
            torch.cuda.current_stream(self._memory.device).synchronize()
        for put in puts:
            if put.peer == self._rank:
                self.inbox[put.target : put.target + put.num_bytes] = self.outbox[put.source :][: put.num_bytes]
                self._to_self.append(put.signal)
            elif put.peer not in self._gone:
                self._send(put)

    def poll(self) -> list[tuple[int, Signal]]:
        """See Transport."""
        landed = [(self._rank, signal) for signal in self._to_self]
        self._to_self.clear()
        for name, notice in self._fabric.advance():
            signal = decode_signal(notice)
            if signal is not None and name in self._ranks:
                landed.append((self._ranks[name], signal))
        for key, peer in list(self._posted.items()):
            self._settle(key, peer)
        return landed

    @property
    def gone(self) -> frozenset[int]:
        """See Transport."""
        return frozenset(self._gone)

    @property
    def busy(self) -> bool:
        """See Transport."""
        return bool(self._posted)

    def close(self) -> None:
        """See Transport."""
        if self._closed:
            return
        self._closed = True
        for key in self._posted:
            self._fabric.release(key)
        self._fabric.close()

    def _send(self, put: Put) -> None:
        name, key = self._names[put.peer], CopyKey(next(self._keys))
        try:
            if not put.num_bytes:
                self._fabric.notify(name, put.signal.encode())
                return
            span = Span(self._outbox_at + put.source, put.target, put.num_bytes)
            plan = TransferPlan((span,))
            self._fabric.post(CopyOrder(key, CopyOp.WRITE, name, plan, self._regions[put.peer], put.signal.encode()))
            self._posted[key] = put.peer
        except TransferError:
            self._gone.add(put.peer)

    def _settle(self, key: CopyKey, peer: int) -> None:
        state = self._fabric.poll(key)
        if state is CopyState.BUSY:
            return
        self._fabric.release(key)
        del self._posted[key]
        if state is CopyState.FAILED:
            self._gone.add(peer)
