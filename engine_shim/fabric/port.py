"""The Fabric port: memory to memory between two engines, and short notices beside it.

One thread owns a Fabric and calls it; nothing here blocks. A Fabric moves nothing by itself: `advance` must be called
often, on both sides, or a copy towards a peer that does not advance never completes; and the mover must `poll` each of
its copies, or the tag of a finished one is never sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType, Protocol

from engine_shim.core.transfer_plan import TransferPlan
from router.contract.kv import Region

PeerName = NewType("PeerName", str)
"""A peer's agent, named by its EngineId."""

CopyKey = NewType("CopyKey", int)


class CopyOp(StrEnum):
    """Direction of a one-sided copy, seen from its mover."""

    WRITE = "WRITE"
    READ = "READ"


class CopyState(StrEnum):
    """Where a posted copy stands."""

    BUSY = "busy"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """One transfer to post: a plan between our Region and the peer's, in the plan's src -> dst direction."""

    key: CopyKey
    op: CopyOp
    peer: PeerName
    plan: TransferPlan
    remote: Region
    tag: bytes
    """Delivered to the peer as a notice once all bytes have landed; empty for none."""
    local: Region | None = None
    """Our end of the copy where it is not the cache: a Region that was registered beside it."""


class Fabric(Protocol):
    """One agent with one registered Region, and perhaps a ring beside it."""

    def metadata(self) -> bytes:
        """What a peer needs for `add_peer`."""

    def add_peer(self, metadata: bytes) -> PeerName:
        """The peer can be written, read and notified. Raises HandshakeFailed."""

    def drop_peer(self, peer: PeerName) -> None:
        """The peer is forgotten; copies towards it end as FAILED. An unknown peer is no error."""

    def notify(self, peer: PeerName, notice: bytes) -> None:
        """The notice is on its way. Raises PeerGone when the peer's process is known to be dead or was never added."""

    def post(self, order: CopyOrder) -> CopyState:
        """The copy has begun. Raises PeerGone or TransferFailed when it could not begin; then nothing will land."""

    def poll(self, key: CopyKey) -> CopyState:
        """Where the copy stands; DONE and FAILED are final, and nothing of it lands after them."""

    def release(self, key: CopyKey) -> None:
        """Resources of an ended copy are returned."""

    def advance(self) -> list[tuple[PeerName, bytes]]:
        """Move everything forward; return the notices that came in, in order per peer."""

    def close(self) -> None:
        """The agent is gone and its memory is no longer registered."""
