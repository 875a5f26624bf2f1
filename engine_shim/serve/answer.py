"""Answer: outputs of the engine on one side, the bytes of OpenAI's answers on the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from engine_shim.engine.port import TokensOut
from engine_shim.engine.tokenizer import Tokenizer
from engine_shim.serve import sse
from engine_shim.serve.intake import Intake
from engine_shim.serve.usage import Tally, Usage

_encode = msgspec.json.Encoder().encode

EventUsage = Usage | None | UnsetType


@dataclass(frozen=True, slots=True)
class Head:
    """What all events of an answer share."""

    id: str
    created: int
    """Unix time, seconds."""
    model: str


class Answer(ABC):
    """The answer to one request; either `events` for every output and `tail`, or `whole` once."""

    def __init__(self, intake: Intake, head: Head, tokenizer: Tokenizer) -> None:
        self.intake = intake
        self.tally = Tally(intake)
        self._head = head
        self._tokenizer = tokenizer
        self._begun = [False] * intake.num_choices

    def events(self, choice: int, output: TokensOut) -> bytes:
        """The events that one output brings."""
        self.tally.take(choice, output)
        first = not self._begun[choice]
        self._begun[choice] = True
        return self._events(choice, output, first)

    def tail(self) -> bytes:
        """What follows the last output: the usage if it is wanted, and the end mark."""
        if not self.intake.wishes.include_usage:
            return sse.DONE
        return sse.event(self._usage_event(self.tally.usage())) + sse.DONE

    def whole(self, outputs: Sequence[Sequence[TokensOut]], kv_transfer_params: dict[str, object] | None) -> bytes:
        """The answer in one piece.

        Args:
            outputs: those of each choice, in order; the last one of each has a finish reason.
        """
        for choice, several in enumerate(outputs):
            for output in several:
                self.tally.take(choice, output)
        return _encode(self._whole(outputs, UNSET if kv_transfer_params is None else kv_transfer_params))

    def _event_usage(self) -> EventUsage:
        wishes = self.intake.wishes
        if wishes.continuous_usage:
            return self.tally.usage()
        return None if wishes.include_usage else UNSET

    @abstractmethod
    def _events(self, choice: int, output: TokensOut, first: bool) -> bytes: ...

    @abstractmethod
    def _usage_event(self, usage: Usage) -> msgspec.Struct: ...

    @abstractmethod
    def _whole(
        self, outputs: Sequence[Sequence[TokensOut]], kv_transfer_params: dict[str, object] | UnsetType
    ) -> msgspec.Struct: ...


def text_of(outputs: Sequence[TokensOut]) -> str:
    """The text of one choice."""
    return "".join(output.text for output in outputs)


def ids_of(outputs: Sequence[TokensOut]) -> list[int]:
    """The token ids of one choice."""
    return [token_id for output in outputs for token_id in output.token_ids]
