"""Call: one whole HTTP call to an engine, awaited; for everything that is no leg of a request.

It goes over a LegPool, so whatever a look at an engine finds holds for the legs as well.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from router.contract.errors import Blame, LegBroken, LegError, LegTimeout
from router.legs.connection import Connection, Headers
from router.legs.leg import Leg
from router.legs.pool import LegPool

MAX_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes


class _Waiter:
    """Owns the leg, and turns what it reports into one result."""

    __slots__ = ("_result",)

    def __init__(self, result: asyncio.Future[Reply]) -> None:
        self._result = result

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """The answer is whole."""
        if not self._result.done():
            self._result.set_result(Reply(status, headers, body))

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """A call has none."""

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """There will be no answer."""
        if not self._result.done():
            self._result.set_exception(error)


class _Call(Leg):
    def __init__(self, owner: _Waiter, pool: LegPool, side: Blame) -> None:
        super().__init__(owner, pool)
        self.side = side
        self._pieces: list[bytes] = []
        self._size = 0

    def on_answer(self, connection: Connection, body: bytes, ended: bool) -> None:
        self._pieces.append(body)
        self._size += len(body)
        if ended:
            self.ended = True
            self.connection = None
            self.owner.on_prefill_answer(connection.status, connection.headers, b"".join(self._pieces))
        elif self._size > MAX_BYTES:
            self.cancel()
            error = LegBroken(f"The {self.side} instance answered more than {MAX_BYTES} bytes.", side=self.side)
            self.owner.on_leg_failed(self, error)


async def call(pool: LegPool, request: bytes, side: Blame, timeout_s: float) -> Reply:
    """The whole answer to these bytes, a request made by `get_request` or `leg_request`.

    Raises:
        LegUnreachable, LegBroken, LegTimeout: there is none.
    """
    result: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
    leg = _Call(_Waiter(result), pool, side)
    leg.send(request)
    try:
        async with asyncio.timeout(timeout_s):
            return await result
    except TimeoutError as error:
        raise LegTimeout(f"The {side} instance did not answer within {timeout_s:g} s.", side=side) from error
    finally:
        if not leg.ended:
            leg.cancel()


def get_request(pool: LegPool, path: bytes) -> bytes:
    """A whole GET."""
    return b"GET %b HTTP/1.1\r\n%baccept: */*\r\n\r\n" % (path, pool.own_lines)
