"""The Engine port: what the shim asks of an engine, and what it is told.

An engine is single-threaded and does no I/O. One thread owns it, calls its verbs, and calls `step()` while
`has_work()`; what the engine has to say comes back as events of `step()`, or is told early.

Pins. Blocks that the fabric may read or write are *pinned*: they outlive their sequence until `unpin`. There are two
kinds, and a sequence has at most one of them, by its Purpose:

    HOLD      (prefill) after the prompt is computed and one token sampled, the sequence ends (`length` or `stop`)
              and its blocks stay pinned until `unpin`. `Prefilled` comes before the last TokensOut, or in the same
              step. One that is asked for `in_parts` may tell of what is there while it computes (`Prefilling`), amid
              a step too; its blocks are pinned before, and it keeps them.
    RECEIVE   (decode) blocks for the whole prompt are taken and pinned as Seats when the sequence is scheduled
              (`Seated`); it is parked until `kv_ready`, which ends the pin and makes it runnable with
              `num_prompt_tokens - 1` tokens present, so that decode itself computes the last prompt token. An `abort`
              of a parked sequence ends the sequence at once, but the Seats stay pinned (quarantined) until `unpin`.

What an engine promises: pinned blocks are never given to another sequence, never evicted, and Seats enter the prefix
cache only at `kv_ready`. `unpin` and `abort` of an unknown sequence do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from router.contract.errors import TandemError
from router.contract.kv import BlockTable, KVLayout, Region


class Purpose(StrEnum):
    """Why a sequence is here."""

    GENERATE = "generate"
    HOLD = "hold"
    RECEIVE = "receive"


class FinishReason(StrEnum):
    """Why a sequence ended; OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose tokens. Defaults mean "off" except temperature, whose OpenAI default is 1."""

    max_tokens: int
    min_tokens: int = 0
    """Stop tokens, stop strings and EOS are ignored (EOS and stop ids masked) before so many tokens."""
    temperature: float = 1.0
    """0 means greedy: the arg max of the logits after penalties and bias; ties go to the lowest token id."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means all."""
    min_p: float = 0.0
    seed: int | None = None
    """With a seed the tokens depend on nothing but the logits; without, on the engine's own stream."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    """None: none; n: the chosen token's and the n likeliest, of the untouched distribution (as vLLM and OpenAI)."""
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence to run."""

    seq_id: str
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: SamplingParams
    purpose: Purpose = Purpose.GENERATE
    in_parts: bool = False
    """HOLD: tell of the KV that is there before all of it is, where the engine can."""
    layers_from_tokens: int = 0
    """In parts: when the last step computes at least so many tokens, tell of layers as well; 0: never."""
    ahead: bool = False
    """Wait before all others: somebody who has waited already waits for it, and it is small."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One position's log probabilities (natural logarithm)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens, likeliest first."""


@dataclass(frozen=True, slots=True)
class TokensOut:
    """New tokens of a sequence. Text is withheld while it may still become a stop string or half a character."""

    seq_id: str
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token id that matched; None for EOS and length."""
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed here: prefix cache hits and received KV."""
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    """With the first output only; entry 0 is None."""


@dataclass(frozen=True, slots=True)
class Seated:
    """RECEIVE: seats are reserved. Tokens `first_token <= t < num_tokens` are wanted (num_tokens = prompt - 1).

    When the prefix cache holds everything, both are equal and the sequence is runnable at once, without a pin.
    """

    seq_id: str
    seats: BlockTable
    first_token: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Prefilling:
    """HOLD: KV of the first `num_tokens` prompt tokens is in these blocks, the whole prompt's, which are pinned."""

    seq_id: str
    blocks: BlockTable
    num_tokens: int
    num_layers: int = 0
    """Only the first so many layers of it are, and the prompt ends there; 0: all are."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """HOLD: KV of all `num_tokens` prompt tokens is in these blocks, which are pinned."""

    seq_id: str
    blocks: BlockTable
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SequenceFailed:
    """The sequence ended badly; no more events follow. Its pin, if any, stays until `unpin`."""

    seq_id: str
    error: TandemError


EngineEvent = TokensOut | Seated | Prefilling | Prefilled | SequenceFailed


@dataclass(frozen=True, slots=True)
class ExpertRankLoad:
    """What one expert rank has done since it started; sums."""

    num_steps: int = 0
    """Exchanges: one a layer with experts."""
    dispatch_s: float = 0.0
    """Packing and posting rows for other ranks' experts."""
    combine_s: float = 0.0
    """Summing and posting answers."""
    dispatch_wait_s: float = 0.0
    """Waiting for rows: a slow rank shows here, at the others."""
    combine_wait_s: float = 0.0
    rows: int = 0
    """Rows that came for its experts."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy the engine is."""

    running_seqs: int
    waiting_seqs: int
    parked_seqs: int
    queued_prompt_tokens: int
    free_blocks: int
    total_blocks: int
    held_blocks: int
    """Distinct pinned blocks."""
    quarantined_blocks: int
    """Distinct pinned blocks whose sequence has ended on decode."""
    preemptions: int
    prefix_hit_tokens: int
    prefix_query_tokens: int
    expert_ranks: tuple[ExpertRankLoad, ...] = ()
    """By rank; empty where no ranks share experts."""
    expert_restarts: int = 0
    """How often ranks that ended were started again, all together."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What the engine serves."""

    name: str
    family: str
    max_context_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    weights_digest: str
    """Equal for the same file of weights; of another file with equal weights it may differ."""
    created_unix_s: int


class Engine(Protocol):
    """An engine that can hand KV cache over and take it."""

    @property
    def card(self) -> ModelCard:
        """What is served."""

    @property
    def layout(self) -> KVLayout:
        """Shape of the KV cache."""

    @property
    def region(self) -> Region:
        """Memory of the KV cache; stays where it is for the engine's life."""

    def add(self, request: SequenceRequest) -> None:
        """Queue a sequence. Raises NoSeats or ContextTooLong when it can never run; BadRequest for a token id
        outside the vocabulary, StaleAttempt for a seq_id in use: its leg has come twice."""

    def abort(self, seq_id: str) -> None:
        """End a sequence without further events; its pin, if any, stays."""

    def kv_ready(self, seq_id: str) -> None:
        """The Seats of a parked sequence hold the wanted KV; it runs from the next step on."""

    def recompute(self, seq_id: str) -> None:
        """A sequence that waits for KV computes its prompt here instead, in blocks of its own. Seats that were reserved
        for it stay pinned until `unpin`, since somebody may still write them; a sequence that does not wait goes on."""

    def unpin(self, seq_id: str) -> None:
        """Nobody reads or writes this sequence's pinned blocks any more."""

    def num_cached(self, prompt: tuple[int, ...]) -> int:
        """Tokens at the beginning of `prompt` whose KV the prefix cache holds now: whole blocks, not the last token."""

    def has_work(self) -> bool:
        """True when a step would move something forward; parked sequences alone are no work."""

    def step(self) -> list[EngineEvent]:
        """Run one batch; return what happened, in order."""

    def tell_early(self, tell: Callable[[Prefilling], None]) -> None:
        """From here on, Prefilling does not wait for the end of a step: `tell` is called, from any thread."""

    def load(self) -> EngineLoad:
        """How busy the engine is, now."""


class EngineRunner(Protocol):
    """Whoever steps an engine and passes its verbs on: the thread that owns it, or the way to a server that does. Verbs
    return at once and take effect soon; what happens comes back as events on the Driver's loop."""

    @property
    def load(self) -> EngineLoad:
        """How busy the engine is, as of its last step."""

    def start(self) -> None:
        """The engine steps."""

    def stop(self) -> None:
        """The engine steps no more; may block for seconds."""

    async def add(self, request: SequenceRequest) -> None:
        """See Engine.add."""

    async def num_cached(self, prompt: tuple[int, ...]) -> int:
        """See Engine.num_cached; 0 where nobody can tell."""

    def abort(self, seq_id: str) -> None:
        """See Engine.abort."""

    def kv_ready(self, seq_id: str) -> None:
        """See Engine.kv_ready."""

    def recompute(self, seq_id: str) -> None:
        """See Engine.recompute."""

    def unpin(self, seq_id: str) -> None:
        """See Engine.unpin."""
