"""Runner: one batch of sequences through the model, to their next tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from dataclasses import replace

import torch

from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.logprobs import token_logprobs
from engine_shim.engine.reference.model import ForwardPass
from engine_shim.engine.reference.sampler import Sampled, Sampler
from engine_shim.engine.reference.sequence import Sequence
from router.contract.errors import TandemError

HEAD_ROWS = 64
"""Rows whose logits are computed at once: a vocabulary's worth of floats per row is a lot of memory."""


class Runner:
    """Computes batches. Knows nothing of queues or blocks; tables and counts of the sequences are given."""

    def __init__(self, model: ForwardPass, cache: KVCache, sampler: Sampler) -> None:
        self._model = model
        self._cache = cache
        self._sampler = sampler

    def run(
        self, rows: Rows[tuple[Sequence, int]], on_layer: Callable[[int], None] | None = None
    ) -> list[tuple[Sequence, Sampled | TandemError]]:
        """The KV of each sequence's next `count` tokens is in the cache.

        Args:
            rows: sequences, each with how many tokens to compute beyond its `num_computed`.
            on_layer: see Batch.
        Returns:
            The next token, or the failure, of every sequence all of whose tokens are computed with this batch.
        """
        # Decoding sequences in order of length, so that attention can group neighbours.
        ordered = sorted(rows, key=lambda row: (row[1] > 1, row[0].num_computed))
        chunks = [_chunk(sequence, count) for sequence, count in ordered]
        batch = make_batch(chunks, self._cache.layout.block_tokens, self._cache.tensor.device)
        if on_layer is not None:
            batch = replace(batch, on_layer=on_layer)
        hidden = self._model.forward(batch, self._cache)
        complete: list[Sequence] = []
        last_rows: list[int] = []
        begin = 0
        for (sequence, _), chunk in zip(ordered, chunks, strict=True):
            end = begin + chunk.num_wanted
            if sequence.wants_prompt_logprobs:
                self._take_prompt_logprobs(sequence, chunk.first_position, hidden[begin:end])
            if chunk.end_position == len(sequence.tokens):
                complete.append(sequence)
                last_rows.append(end - 1)
            begin = end
        return list(zip(complete, self._sample(hidden[last_rows], complete), strict=True))

    def _sample(self, hidden: torch.Tensor, sequences: list[Sequence]) -> Iterator[Sampled | TandemError]:
        for begin in range(0, len(sequences), HEAD_ROWS):
            part = slice(begin, begin + HEAD_ROWS)
            yield from self._sampler.sample(self._model.logits(hidden[part]), sequences[part])

    def _take_prompt_logprobs(self, sequence: Sequence, first_position: int, hidden: torch.Tensor) -> None:
        """`sequence.prompt_logprobs` grows by what the states of these positions, in order, say of the next tokens."""
        num_top = sequence.sampling.prompt_logprobs or 0
        known = len(sequence.prompt_logprobs)
        for begin in range(first_position, first_position + len(hidden), HEAD_ROWS):
            end = min(begin + HEAD_ROWS, first_position + len(hidden), sequence.num_prompt_tokens - 1)
            begin_new = max(begin, known - 1)
            if begin_new < end:
                logits = self._model.logits(hidden[begin_new - first_position : end - first_position])
                targets = sequence.tokens[begin_new + 1 : end + 1]
                sequence.prompt_logprobs += token_logprobs(logits, targets, num_top)


def _chunk(sequence: Sequence, count: int) -> Chunk:
    begin, end = sequence.num_computed, sequence.num_computed + count
    num_wanted = count if sequence.wants_prompt_logprobs else int(end == len(sequence.tokens))
    return Chunk(sequence.tokens[begin:end], begin, sequence.table, num_wanted)
