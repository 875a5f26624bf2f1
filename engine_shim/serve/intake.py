"""Intake: an inference request, parsed and validated once; nobody reads the body after this."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from engine_shim.engine.port import Purpose, SamplingParams, SequenceRequest
from router.contract.wire import Handoff, PrefillHandoff

_SEED_SPAN = 1 << 64


class Endpoint(StrEnum):
    """Which of the two endpoints was asked."""

    CHAT = "chat"
    COMPLETION = "completion"

    @property
    def id_prefix(self) -> str:
        """What a response id begins with."""
        return "chatcmpl-" if self is Endpoint.CHAT else "cmpl-"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, at least one token."""

    token_ids: tuple[int, ...]
    text: str | None
    """What the caller wrote, if it was text; None for a chat or for token ids."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the answer shall contain beside text."""

    stream: bool = False
    include_usage: bool = False
    """Streamed: a last event with the usage; all others then carry `"usage": null`."""
    continuous_usage: bool = False
    """Streamed: every event carries the usage so far."""
    echo: bool = False
    logprobs: int | None = None
    """How many of the likeliest tokens beside the chosen one; None: no log probabilities."""
    prompt_logprobs: bool = False
    token_ids: bool = False


@dataclass(frozen=True, slots=True)
class Intake:
    """A validated request. Choice `i` of the answer is sequence `i % n` of prompt `i // n`."""

    endpoint: Endpoint
    request_id: str
    prompts: tuple[Prompt, ...]
    n: int
    sampling: SamplingParams
    wishes: Wishes
    handoff: Handoff | None
    deadline_for_s: float

    @property
    def response_id(self) -> str:
        """`id` of the answer and of all its events."""
        return self.endpoint.id_prefix + self.request_id

    @property
    def num_choices(self) -> int:
        """Sequences to run."""
        return len(self.prompts) * self.n

    def prompt_of(self, choice: int) -> Prompt:
        """The prompt that this choice continues."""
        return self.prompts[choice // self.n]

    def sequence(self, choice: int) -> SequenceRequest:
        """What the engine is asked for this choice: seeds of one prompt's choices count up from the given one."""
        sampling = self.sampling
        if sampling.seed is not None and choice % self.n:
            sampling = _with_seed(sampling, sampling.seed + choice % self.n)
        purpose = Purpose.GENERATE
        if self.handoff is not None:
            purpose = Purpose.HOLD if isinstance(self.handoff, PrefillHandoff) else Purpose.RECEIVE
        return SequenceRequest(f"{self.request_id}#{choice}", self.prompt_of(choice).token_ids, sampling, purpose)


def _with_seed(sampling: SamplingParams, seed: int) -> SamplingParams:
    """The same with a seed that is brought back into the range of signed 64-bit integers."""
    return replace(sampling, seed=(seed + _SEED_SPAN // 2) % _SEED_SPAN - _SEED_SPAN // 2)
