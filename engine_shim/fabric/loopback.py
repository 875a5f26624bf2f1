"""A Fabric inside one process: the specification of the port, and the adversary of the tests.

Agents of one `LoopbackNetwork` copy with memmove. As with the real thing, nothing moves unless both sides advance: a
copy lands when the peer advances, and its tag is delivered in the same step.
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass, field

from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, PeerName
from router.contract.errors import HandshakeFailed, PeerGone, TransferFailed
from router.contract.kv import Region


@dataclass(slots=True)
class LoopbackNetwork:
    """The agents that can reach each other."""

    agents: dict[PeerName, LoopbackFabric] = field(default_factory=dict)


class LoopbackFabric:
    """One agent of a LoopbackNetwork. `region` must be host memory."""

    def __init__(self, name: str, region: Region, network: LoopbackNetwork) -> None:
        self._name = PeerName(name)
        self._region = region
        self._network = network
        self._peers: set[PeerName] = set()
        self._arriving: deque[tuple[LoopbackFabric, CopyOrder]] = deque()
        self._notices: deque[tuple[PeerName, bytes]] = deque()
        self._states: dict[CopyKey, CopyState] = {}
        network.agents[self._name] = self

    def metadata(self) -> bytes:
        """See Fabric."""
        return self._name.encode()

    def add_peer(self, metadata: bytes) -> PeerName:
        """See Fabric."""
        peer = PeerName(metadata.decode(errors="replace"))
        if peer not in self._network.agents:
            raise HandshakeFailed("No such agent in this network.")
        self._peers.add(peer)
        return peer

    def drop_peer(self, peer: PeerName) -> None:
        """See Fabric."""
        self._peers.discard(peer)

    def notify(self, peer: PeerName, notice: bytes) -> None:
        """See Fabric."""
        self._live(peer)._notices.append((self._name, notice))

    def post(self, order: CopyOrder) -> CopyState:
        """See Fabric."""
        target = self._live(order.peer)
        ours = order.local or self._region
        local, remote = (order.remote, ours) if order.op is CopyOp.READ else (ours, order.remote)
        for span in order.plan.spans:
            if (
                span.src_offset + span.num_bytes > local.num_bytes
                or span.dst_offset + span.num_bytes > remote.num_bytes
            ):
                raise TransferFailed("A span of the plan lies outside the registered Region.")
        self._states[order.key] = CopyState.BUSY
        target._arriving.append((self, order))
        return CopyState.BUSY

    def poll(self, key: CopyKey) -> CopyState:
        """See Fabric."""
        return self._states[key]

    def release(self, key: CopyKey) -> None:
        """See Fabric."""
        self._states.pop(key, None)

    def advance(self) -> list[tuple[PeerName, bytes]]:
        """See Fabric."""
        while self._arriving:
            mover, order = self._arriving.popleft()
            self._land(mover, order)
        notices, self._notices = list(self._notices), deque()
        return notices

    def close(self) -> None:
        """See Fabric. Copies that have not landed end as FAILED at their movers."""
        self._network.agents.pop(self._name, None)
        while self._arriving:
            mover, order = self._arriving.popleft()
            mover._states[order.key] = CopyState.FAILED

    def _live(self, peer: PeerName) -> LoopbackFabric:
        agent = self._network.agents.get(peer)
        if agent is None or peer not in self._peers:
            raise PeerGone(f"{peer} is not reachable.")
        return agent

    def _land(self, mover: LoopbackFabric, order: CopyOrder) -> None:
        writes = order.op is CopyOp.WRITE
        theirs = order.local or mover._region
        src, dst = (theirs, order.remote) if writes else (order.remote, theirs)
        for span in order.plan.spans:
            ctypes.memmove(dst.base + span.dst_offset, src.base + span.src_offset, span.num_bytes)
        mover._states[order.key] = CopyState.DONE
        if order.tag:
            self._notices.append((mover._name, order.tag))
