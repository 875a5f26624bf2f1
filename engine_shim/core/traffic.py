"""Traffic: what the copies between this engine and each of its peers have carried, how long they took, and how much of
it was pushed before prefill was done."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from engine_shim.core.push import Chunk
from router.contract.ids import EngineId

MAX_PEERS = 64
"""Peers beyond so many are counted as `other`: labels must not grow with the fleet."""
OTHER = "other"


@dataclass(slots=True)
class Flow:
    """Copies between this engine and one peer, in one direction."""

    done: int = 0
    failed: int = 0
    num_bytes: int = 0
    """Of copies that are done, as are spans and seconds."""
    num_spans: int = 0
    seconds: float = 0.0
    """From the order to its observed end, added up; copies that overlap count each."""


class Traffic:
    """Flows by (instance id of the peer, WRITE or READ). A peer that starts again goes on with its own."""

    def __init__(self) -> None:
        self.flows: dict[tuple[str, str], Flow] = {}
        self._peers: set[str] = set()

    def add(self, peer: EngineId, op: str, size: tuple[int, int], seconds: float | None) -> None:
        """A copy of `size` (bytes, spans) has ended after so many seconds; None: it failed."""
        flow = self.flows.setdefault((self._named(peer), op), Flow())
        if seconds is None:
            flow.failed += 1
            return
        flow.done += 1
        flow.num_bytes += size[0]
        flow.num_spans += size[1]
        flow.seconds += seconds

    def _named(self, peer: EngineId) -> str:
        name = peer.rpartition("@")[0] or peer
        if name not in self._peers and len(self._peers) >= MAX_PEERS:
            return OTHER
        self._peers.add(name)
        return name


class Pushes:
    """The WRITEs of pushes, as they are ordered."""

    def __init__(self) -> None:
        self.num_pushes = 0
        self.writes = Counter(early=0, last=0)
        """`early`: before prefill was done."""
        self.num_bytes = Counter(early=0, last=0)

    def add(self, chunk: Chunk, num_bytes: int) -> None:
        """A WRITE of so many bytes is posted."""
        when = "early" if chunk.early else "last"
        self.num_pushes += chunk.seq == 0
        self.writes[when] += 1
        self.num_bytes[when] += num_bytes
