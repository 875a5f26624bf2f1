"""Copies on their way through the writer thread, and who is told when they end."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from time import monotonic

from engine_shim.core.traffic import Traffic
from engine_shim.core.transfer_plan import TransferPlan
from engine_shim.driver.handshake import PeerCard
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, PeerName
from engine_shim.fabric.writer import CopyEnded, Post, Writer
from router.contract.errors import TandemError

OnEnd = Callable[[TandemError | None], None]


class Copies:
    """Posts copies and remembers them until they end."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._keys = count(1)
        self._live: dict[CopyKey, OnEnd] = {}
        self.num_bytes_moved = 0
        self.traffic = Traffic()

    @property
    def num_live(self) -> int:
        """Copies that are posted and have not ended."""
        return len(self._live)

    def write(self, peer: PeerCard, plan: TransferPlan, tag: bytes, on_end: OnEnd) -> None:
        """WRITE to the peer; `on_end` is called once, when nothing of it can land any more."""
        self._post(CopyOp.WRITE, peer, plan, tag, on_end)

    def read(self, peer: PeerCard, plan: TransferPlan, on_end: OnEnd) -> None:
        """READ from the peer; `on_end` as for `write`."""
        self._post(CopyOp.READ, peer, plan, b"", on_end)

    def on_ended(self, event: CopyEnded) -> None:
        """The writer thread reports the end of a copy."""
        self._live.pop(event.key)(event.error)

    def _post(self, op: CopyOp, peer: PeerCard, plan: TransferPlan, tag: bytes, on_end: OnEnd) -> None:
        key = CopyKey(next(self._keys))
        size, began_at = (plan.num_bytes, len(plan.spans)), monotonic()

        def ended(error: TandemError | None) -> None:
            self.traffic.add(peer.engine_id, op, size, monotonic() - began_at if error is None else None)
            on_end(error)

        self._live[key] = ended
        self.num_bytes_moved += plan.num_bytes
        self._writer.tell(Post(CopyOrder(key, op, PeerName(peer.engine_id), plan, peer.region, tag)))
