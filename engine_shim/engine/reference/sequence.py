"""Sequence: one request inside the engine, from `add` to its end."""

from __future__ import annotations

from enum import Enum, auto

from engine_shim.engine.port import Purpose, SequenceRequest, TokenLogprob
from engine_shim.engine.reference.block_names import BlockNames
from engine_shim.engine.reference.text_stream import TextStream


class State(Enum):
    """Where a sequence is to be found."""

    WAITING = auto()
    """In the queue; it owns no blocks. New, or preempted."""
    PARKED = auto()
    """RECEIVE: its seats are pinned, and it waits for `kv_ready`."""
    RUNNING = auto()
    """It has blocks for its tokens and takes part in batches."""
    ENDED = auto()


class Sequence:
    """Tokens, blocks and progress of one request.

    `tokens` are the prompt and the output so far. Of these, `[0, num_computed)` have their KV in `table`; the sequence
    samples its next token in the pass that computes the last of them.
    """

    def __init__(self, request: SequenceRequest, seed: int, names: BlockNames, text: TextStream) -> None:
        self.seq_id = request.seq_id
        self.purpose = request.purpose
        self.ahead = request.ahead
        self.sampling = request.sampling
        self.seed = seed
        self.tokens = list(request.prompt)
        self.num_prompt_tokens = len(request.prompt)
        self.state = State.WAITING
        self.table: list[int] = []
        self.num_computed = 0
        self.num_remembered_blocks = 0
        self.in_parts = request.in_parts and request.purpose is Purpose.HOLD and request.sampling.max_tokens == 1
        """It tells of its KV while it computes, and is pinned meanwhile; one that could still grow is not."""
        self.layers_from_tokens = request.layers_from_tokens if self.in_parts else 0
        self.names = names
        self.text = text
        self.computes_prompt = request.purpose is not Purpose.RECEIVE
        """False while the prompt's KV is to come from outside."""
        self.num_cached_tokens: int | None = None
        """Prompt tokens found in the prefix cache or received, as of the first admission."""
        self.output_counts: dict[int, int] = {}
        self.prompt_logprobs: list[TokenLogprob | None] = [None] if self._asks_prompt_logprobs else []
        """Of the prompt tokens seen so far, where they are asked for; the first has no condition."""

    @property
    def num_output_tokens(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_missing(self) -> int:
        """Tokens that are yet to be computed before the next one can be sampled."""
        return len(self.tokens) - self.num_computed

    @property
    def is_receiving(self) -> bool:
        """True while the prompt's KV is to come from outside: not for a sequence that was preempted after it came."""
        return not self.computes_prompt and self.num_cached_tokens is None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True while prompt tokens' log probabilities are asked for and not complete."""
        return self._asks_prompt_logprobs and len(self.prompt_logprobs) < self.num_prompt_tokens

    @property
    def _asks_prompt_logprobs(self) -> bool:
        return self.sampling.prompt_logprobs is not None

    def append(self, token_id: int) -> None:
        """`token_id` is the newest token."""
        self.tokens.append(token_id)
        self.output_counts[token_id] = self.output_counts.get(token_id, 0) + 1
