"""A Transport over a Fabric: ranks are processes, each with an agent of its own and one Region for inbox and outbox.

The agent is not the one that moves KV cache: rows of decode must not stand behind megabytes of prefill. A peer's
notices are known by its name, which is new at every start, so nothing of an earlier group is taken for ours.

The Region may lie on a GPU. What torch computes there is ordered by the current stream alone, so before a WRITE is
posted that stream is waited for: then the outbox is written, and what peers may overwrite next has been read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import torch

from engine_shim.experts.regions import Regions
from engine_shim.experts.signal import Signal, decode_signal
from engine_shim.experts.transport import Put
from engine_shim.fabric.group import FabricGroup, RankCard, Slice
from engine_shim.fabric.port import Fabric
from router.contract.errors import HandshakeFailed, RankGone
from router.contract.kv import Region

CPU = torch.device("cpu")
PAUSE_S = 0.001


def take_memory(regions: Regions, device: torch.device = CPU) -> torch.Tensor:
    """uint8 on `device`: inbox, then outbox, not initialised; nothing that was begun before will write to it."""
    memory = torch.empty(regions.total_bytes, dtype=torch.uint8, device=device)
    if device.type == "cuda":
        # Peers write past every stream of ours, so also past a kernel for which the memory was something else.
        torch.cuda.synchronize(device)
    return memory


def region_of(memory: torch.Tensor) -> Region:
    """The Region to register."""
    return Region(memory.data_ptr(), memory.numel(), memory.device.type, memory.device.index or 0)


class FabricTransport:
    """See Transport."""

    def __init__(self, fabric: Fabric, memory: torch.Tensor, regions: Regions, rank: int) -> None:
        """`fabric` has registered `memory`, from `take_memory`."""
        self._group = FabricGroup(fabric, region_of(memory), rank)
        self._memory = memory
        self._rank = rank
        self.inbox, self.outbox = memory[: regions.inbox_bytes], memory[regions.inbox_bytes :]
        self._outbox_at = regions.inbox_bytes
        self._to_self: list[Signal] = []
        self._early: list[tuple[int, bytes]] = []
        self._closed = False

    def card(self) -> RankCard:
        """What the others need for `connect`."""
        return self._group.card()

    def connect(self, cards: Mapping[int, RankCard], wait_for_s: float = 60.0) -> None:
        """All ranks can write to each other: some networks take no bytes from those whom they do not know yet.

        Raises:
            HandshakeFailed: a card is of no use, or of a rank whose memory is divided otherwise.
            RankGone: a rank has not come so far in `wait_for_s`.
        """
        for rank, card in cards.items():
            if card.region.num_bytes != self._memory.numel():
                raise HandshakeFailed(
                    f"Expert rank {rank} has {card.region.num_bytes} bytes of buffers and rank {self._rank} has "
                    f"{self._memory.numel()}: give all ranks the same shape, private rows and flights."
                )
        self._group.connect(cards)
        number, ends_at = self._group.arrive(), time.monotonic() + wait_for_s
        while missing := self._group.missing(number):
            # Who has seen all of us may put already, while we still wait for others.
            self._early += self._group.poll()
            gone = self._group.gone
            if gone or time.monotonic() > ends_at:
                raise RankGone(f"Expert ranks {sorted(gone or missing)} did not connect; start the ranks again.")
            time.sleep(PAUSE_S)

    def scatter(self, puts: Sequence[Put]) -> None:
        """See Transport."""
        if self._memory.is_cuda and any(put.num_bytes for put in puts):
            torch.cuda.current_stream(self._memory.device).synchronize()
        for put in puts:
            if put.peer == self._rank:
                self.inbox[put.target : put.target + put.num_bytes] = self.outbox[put.source :][: put.num_bytes]
                self._to_self.append(put.signal)
        self._group.scatter(
            [
                Slice(put.peer, self._outbox_at + put.source, put.target, put.num_bytes, put.signal.encode())
                for put in puts
                if put.peer != self._rank
            ]
        )

    def poll(self) -> list[tuple[int, Signal]]:
        """See Transport."""
        landed = [(self._rank, signal) for signal in self._to_self]
        self._to_self.clear()
        told, self._early = [*self._early, *self._group.poll()], []
        for rank, notice in told:
            signal = decode_signal(notice)
            if signal is not None:
                landed.append((rank, signal))
        return landed

    @property
    def gone(self) -> frozenset[int]:
        """See Transport."""
        return frozenset(self._group.gone)

    @property
    def busy(self) -> frozenset[int]:
        """See Transport."""
        return self._group.busy

    def close(self) -> None:
        """See Transport."""
        if self._closed:
            return
        self._closed = True
        self._group.close()
