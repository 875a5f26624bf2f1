"""TakeBack: tells an engine's shim that an attempt is over, so that it gives up whatever it still holds of it.

Closing a leg's connection says the same, where there is one and the close arrives; this covers a prefill that has
answered, a decode leg that never got so far, and connections that are half-open. Whatever becomes of the call, the
engine's own leases and deadlines end the wait in the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from router.contract.errors import Blame, LegError, LegTimeout
from router.contract.seal import CANCEL, SEAL_HEADER, Seal
from router.legs.connection import Connection, Headers
from router.legs.leg import Leg
from router.legs.params import leg_request
from router.legs.pool import LegPool

PATH = b"/kv/cancel"
LEFT_S = 5.0
"""What the call says it has left."""
WAIT_S = 60.0
"""A call is given up after so many seconds: one that is frozen may hear it yet when it goes on, but not for ever, since
its connection is held meanwhile."""

OnEnd = Callable[[int], None]
"""Called once with the HTTP status of the whole answer, or 0 when there was none."""


def result_of(status: int) -> str:
    """What came of a call: `told`; `refused`, most likely for another deployment key; or `failed`."""
    if 200 <= status < 300:
        return "told"
    return "refused" if 400 <= status < 500 else "failed"


class _Owner:
    """Turns what a leg reports into one call."""

    __slots__ = ("_on_end", "timer")

    def __init__(self, on_end: OnEnd) -> None:
        self._on_end = on_end
        self.timer: asyncio.TimerHandle | None = None
        """When the call is given up."""

    def stop_timer(self) -> None:
        """It is not given up any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """The shim has answered."""
        self.stop_timer()
        self._on_end(status)

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """A call has none."""

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """The shim could not be told."""
        self.stop_timer()
        self._on_end(0)


class TakeBack(Leg):
    """One call of `POST /kv/cancel`; of its answer only the status counts."""

    side = Blame.PREFILL

    def __init__(self, pool: LegPool, on_end: OnEnd) -> None:
        self._teller = _Owner(on_end)
        super().__init__(self._teller, pool)

    def send(self, request: bytes) -> None:
        """The call is on its way, until it is answered or given up."""
        self._teller.timer = asyncio.get_running_loop().call_later(WAIT_S, self._give_up)
        super().send(request)

    def cancel(self) -> None:
        """The call is over, and nobody is told what came of it."""
        self._teller.stop_timer()
        super().cancel()

    def _give_up(self) -> None:
        self.cancel()
        self.owner.on_leg_failed(self, LegTimeout("The shim does not answer.", side=self.side, phase="take_back"))

    def on_answer(self, connection: Connection, body: bytes, ended: bool) -> None:
        """The connection returns to its pool by itself once the answer has ended."""
        if ended:
            self.ended = True
            self.connection = None
            self.owner.on_prefill_answer(connection.status, [], b"")


def take_back_request(pool: LegPool, transfer_id: bytes, reason: bytes, seal: Seal) -> bytes:
    """The whole call, sealed with the deployment key. Ids and reasons are ours and need no escaping."""
    body = b'{"transfer_id":"%b","reason":"%b"}' % (transfer_id, reason)
    proof = f"{SEAL_HEADER}: {seal.header(CANCEL, body)}\r\n".encode("ascii")
    return leg_request(pool, PATH, transfer_id, LEFT_S, proof, body)
