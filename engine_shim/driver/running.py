"""The sequences that run: who listens to each, what hand-over it belongs to, and when it must be over."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable
from dataclasses import dataclass

from engine_shim.driver.stream import Stream
from engine_shim.engine.port import TokensOut
from router.contract.errors import DeadlinePassed, StaleAttempt, TandemError
from router.contract.ids import TransferId
from router.contract.wire import Handoff

LOCAL = "local:"


def prefill_seq(transfer_id: TransferId) -> str:
    """The engine's name for this transfer's prefill sequence."""
    return f"prefill:{transfer_id}"


def decode_seq(transfer_id: TransferId) -> str:
    """The engine's name for this transfer's decode sequence."""
    return f"decode:{transfer_id}"


def local_seqs(transfer_id: TransferId) -> str:
    """How the engine's names for the sequences of an attempt without a hand-over begin."""
    return f"{LOCAL}{transfer_id}#"


def transfer_of(seq_id: str) -> TransferId:
    """The transfer behind a prefill or decode sequence."""
    return TransferId(seq_id.partition(":")[2])


@dataclass(slots=True)
class _Sequence:
    stream: Stream
    handoff: Handoff | None
    deadline: TimerHandle | None = None


class Running:
    """All sequences that have not ended."""

    def __init__(self, loop: AbstractEventLoop, on_early_end: Callable[[str, Handoff | None, str], None]) -> None:
        """`on_early_end(seq_id, handoff, reason)` hears once of each sequence that the engine did not end itself."""
        self._loop = loop
        self._on_early_end = on_early_end
        self._sequences: dict[str, _Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, seq_id: object) -> bool:
        return seq_id in self._sequences

    def begin(self, seq_id: str, handoff: Handoff | None) -> Stream:
        """The sequence is known. Raises StaleAttempt when its id is in use."""
        if seq_id in self._sequences:
            raise StaleAttempt("This transfer_id is in use; each attempt needs a fresh one.")
        stream = Stream(seq_id, self._on_close)
        self._sequences[seq_id] = _Sequence(stream, handoff)
        return stream

    def set_deadline(self, seq_id: str, for_s: float) -> None:
        """The sequence fails with DeadlinePassed when it is not over in time."""
        sequence = self._sequences.get(seq_id)
        if sequence is not None:
            error = DeadlinePassed(f"The request was not finished within its {for_s:g} s.")
            sequence.deadline = self._loop.call_later(for_s, self.fail, seq_id, error)

    def push(self, output: TokensOut) -> None:
        """Output for a sequence; a sequence that ended early gets none."""
        sequence = self._sequences.get(output.seq_id)
        if sequence is None:
            return
        sequence.stream.push(output)
        if sequence.stream.ended:
            self._forget(output.seq_id)

    def answer(self, seq_id: str, params: dict[str, object]) -> None:
        """The prefill leg's reply carries these `kv_transfer_params`."""
        sequence = self._sequences.get(seq_id)
        if sequence is not None:
            sequence.stream.answer = params

    def seated(self, seq_id: str, now: float) -> None:
        """A decode leg has its seats."""
        sequence = self._sequences.get(seq_id)
        if sequence is not None:
            sequence.stream.seated_at = now

    def kv_ready(self, seq_id: str, now: float) -> None:
        """All of its KV cache is there."""
        sequence = self._sequences.get(seq_id)
        if sequence is not None:
            sequence.stream.take_kv(now)

    def fail(self, seq_id: str, error: TandemError) -> None:
        """The sequence ends with this error; one that has ended already stays as it is."""
        sequence = self._sequences.get(seq_id)
        if sequence is not None:
            sequence.stream.fail(error)
            self._end_early(seq_id, error.code)

    def fail_named(self, prefix: str, error: TandemError) -> None:
        """Every sequence whose name begins so ends with this error."""
        for seq_id in [seq_id for seq_id in self._sequences if seq_id.startswith(prefix)]:
            self.fail(seq_id, error)

    def fail_all(self, error: TandemError) -> None:
        """Every sequence ends with this error."""
        for seq_id in list(self._sequences):
            self.fail(seq_id, error)

    def _on_close(self, stream: Stream) -> None:
        sequence = self._sequences.get(stream.seq_id)
        if sequence is not None and sequence.stream is stream:
            stream.ended = True
            self._end_early(stream.seq_id, "cancelled")

    def _end_early(self, seq_id: str, reason: str) -> None:
        self._on_early_end(seq_id, self._forget(seq_id), reason)

    def _forget(self, seq_id: str) -> Handoff | None:
        sequence = self._sequences.pop(seq_id)
        if sequence.deadline is not None:
            sequence.deadline.cancel()
        return sequence.handoff
