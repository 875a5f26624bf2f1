"""Stream: one sequence's output on its way to whoever asked for it."""

from __future__ import annotations

from asyncio import Event
from collections import deque
from collections.abc import Callable

from engine_shim.engine.port import TokensOut
from router.contract.errors import TandemError


class Stream:
    """Async iterator of TokensOut. Ends after the output with a finish reason, or raises the sequence's error."""

    def __init__(self, seq_id: str, on_close: Callable[[Stream], None]) -> None:
        self.seq_id = seq_id
        self.answer: dict[str, object] | None = None
        """`kv_transfer_params` for a prefill leg's reply; set before the last output is handed out."""
        self.seated_at = 0.0
        """When a decode leg's seats were reserved, monotonic seconds; 0.0 for any other."""
        self.kv_ready_at = 0.0
        """When its KV cache was whole."""
        self.ended = False
        """True once the sequence is over, however it ended."""
        self._on_close = on_close
        self._waiting: deque[TokensOut] = deque()
        self._error: TandemError | None = None
        self._wake = Event()

    def take_kv(self, now: float) -> None:
        """Its KV cache is whole."""
        self.kv_ready_at = now
        self._wake.set()

    async def wait_kv(self) -> None:
        """Returns once its KV cache is whole, or was not needed. Raises the error with which it has ended before."""
        while not (self.kv_ready_at or self._waiting or self.ended):
            self._wake.clear()
            await self._wake.wait()
        if self._error is not None:
            raise self._error

    def push(self, output: TokensOut) -> None:
        """Hand one output over; the one with a finish reason is the last."""
        if self.ended:
            return
        self._waiting.append(output)
        self.ended = output.finish_reason is not None
        self._wake.set()

    def fail(self, error: TandemError) -> None:
        """End with this error, after the outputs that are waiting."""
        if self.ended:
            return
        self._error, self.ended = error, True
        self._wake.set()

    def close(self) -> None:
        """Nobody listens any more: the sequence is aborted if it still runs. Idempotent, never blocks."""
        self._on_close(self)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> TokensOut:
        while True:
            if self._waiting:
                return self._waiting.popleft()
            if self._error is not None:
                raise self._error
            if self.ended:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()
