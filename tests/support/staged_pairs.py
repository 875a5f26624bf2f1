"""Two StagedFabrics over a loopback network, in host memory, with a clock of their own and faults at will."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable

import numpy as np

from engine_shim.core.copy_costs import Path
from engine_shim.core.transfer_plan import TransferPlan
from engine_shim.fabric.copier import open_ring
from engine_shim.fabric.loopback import LoopbackFabric, LoopbackNetwork
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, Fabric, PeerName
from engine_shim.fabric.ring import Ring, make_ring
from engine_shim.fabric.staged import StagedFabric, Staging
from router.contract.kv import Region
from router.contract.seal import Seal
from tests.support.host_mapper import HostMapper

SLOT = 8192
RING_BYTES = 8 * SLOT
names = itertools.count()


class Clock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class StagedAgent:
    """Memory, ring and fabric."""

    def __init__(
        self,
        num_bytes: int,
        make: Callable[[str, Region, Region], Fabric],
        seal: Seal | None = None,
        clock: Callable[[], float] | None = None,
        path: Path = Path.STAGED,
    ) -> None:
        self.clock = clock or Clock()
        self._buffer = ctypes.create_string_buffer(num_bytes)
        self.memory = np.frombuffer(self._buffer, dtype=np.uint8)
        self.region = Region(ctypes.addressof(self._buffer), num_bytes, "cpu")
        self.name = f"agent-{next(names)}@1"
        self.mapper = HostMapper(self.region) if path is Path.MAPPED else None
        self.ring: Ring = make_ring(*open_ring(self.region, RING_BYTES), self.clock, self.mapper)
        self.inner = make(self.name, self.region, self.ring.card.region)
        self.fabric = StagedFabric(
            self.name, self.region, self.inner, Staging(self.ring, seal or Seal(), clock=self.clock)
        )
        self.fabric.force = path
        self.notices: list[bytes] = []
        self.states: dict[CopyKey, CopyState] = {}
        self._keys = itertools.count(1)

    def write(self, peer: StagedAgent, plan: TransferPlan, tag: bytes = b"tag") -> CopyKey:
        return self.copy(peer, plan, CopyOp.WRITE, tag)

    def copy(self, peer: StagedAgent, plan: TransferPlan, op: CopyOp, tag: bytes = b"") -> CopyKey:
        key = CopyKey(next(self._keys))
        order = CopyOrder(key, op, PeerName(peer.name), plan, peer.region, tag)
        self.states[key] = self.fabric.post(order)
        return key

    def turn(self) -> None:
        """One round of a writer thread."""
        if isinstance(self.clock, Clock):
            self.clock.now += 0.01
        self.notices += [notice for _, notice in self.fabric.advance()]
        for key, state in self.states.items():
            if state is CopyState.BUSY:
                self.states[key] = self.fabric.poll(key)
                if self.states[key] is not CopyState.BUSY:
                    self.fabric.release(key)

    @property
    def free_slots(self) -> tuple[int, int]:
        return self.ring.outgoing.num_free, self.ring.incoming.num_free


def loopback_pair(
    num_bytes: int, target_bytes: int = 0, seals: tuple[Seal, Seal] | None = None, path: Path = Path.STAGED
) -> tuple[StagedAgent, StagedAgent]:
    network = LoopbackNetwork()

    def make(name: str, region: Region, _ring: Region) -> Fabric:
        return LoopbackFabric(name, region, network)

    ours, theirs = seals or (Seal(), Seal())
    p = StagedAgent(num_bytes, make, ours, path=path)
    d = StagedAgent(target_bytes or num_bytes, make, theirs, path=path)
    meet(p, d)
    return p, d


def meet(p: StagedAgent, d: StagedAgent) -> None:
    assert p.fabric.add_peer(d.fabric.metadata()) == d.name
    assert d.fabric.add_peer(p.fabric.metadata()) == p.name


def turns(*agents: StagedAgent, count: int = 50) -> None:
    for _ in range(count):
        for agent in agents:
            agent.turn()
