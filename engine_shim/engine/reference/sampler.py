"""Sampler: the next token of each sequence, from its row of logits.

A batch in which everybody is greedy costs one reduction over all rows; only rows that ask for more are looked at one by
one. Whatever goes wrong with one row is that sequence's own failure.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch

from engine_shim.engine.port import TokenLogprob
from engine_shim.engine.reference.draw import draw, uniform
from engine_shim.engine.reference.logprobs import token_logprobs
from engine_shim.engine.reference.sequence import Sequence
from engine_shim.engine.reference.shaping import is_shaped, shape_
from router.contract.errors import EngineDown, TandemError

log = logging.getLogger("tandem.engine")

GREEDY_BELOW = 1e-5
"""Temperatures up to this are greedy; dividing by less would only overflow."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was chosen for one row."""

    token_id: int
    logprob: TokenLogprob | None = None


class Sampler:
    """Chooses tokens."""

    def __init__(self, eos_token_ids: tuple[int, ...]) -> None:
        self._eos_token_ids = eos_token_ids

    def sample(self, logits: torch.Tensor, sequences: Rows[Sequence]) -> list[Sampled | TandemError]:
        """The next token of each sequence, or why there is none.

        Args:
            logits: float32 [rows, vocab], overwritten.
            sequences: whose rows they are.
        """
        largest, likeliest = logits.max(dim=-1)
        chosen: list[Sampled | TandemError] = [
            Sampled(token_id) if math.isfinite(value) else _no_token(value)
            for value, token_id in zip(largest.tolist(), likeliest.tolist(), strict=True)
        ]
        for index, sequence in enumerate(sequences):
            if not _is_plain(sequence) and isinstance(chosen[index], Sampled):
                chosen[index] = self._choose(logits[index], sequence)
        return chosen

    def _choose(self, row: torch.Tensor, sequence: Sequence) -> Sampled | TandemError:
        try:
            return self._chosen(row, sequence)
        except Exception as error:
            # The one boundary of a sequence's sampling: what goes wrong here is nobody else's failure.
            log.exception("Sampling failed.")
            return EngineDown(f"No token could be sampled ({type(error).__name__}); change the sampling parameters.")

    def _chosen(self, row: torch.Tensor, sequence: Sequence) -> Sampled | TandemError:
        sampling = sequence.sampling
        shaped = row
        if is_shaped(sequence):
            shaped = row.clone()
            shape_(shaped, sequence, self._eos_token_ids)
        largest, likeliest = shaped.max(dim=-1)
        if not math.isfinite(float(largest)):
            return _no_token(float(largest))
        if sampling.temperature > GREEDY_BELOW:
            likeliest = draw(shaped, sampling, uniform(sequence.seed, sequence.num_output_tokens))
        token_id = int(likeliest)
        if sampling.logprobs is None:
            return Sampled(token_id)
        (logprob,) = token_logprobs(row.unsqueeze(0), [token_id], sampling.logprobs)
        return Sampled(token_id, logprob)


def _is_plain(sequence: Sequence) -> bool:
    """True when the arg max of the untouched logits is all that is asked for."""
    sampling = sequence.sampling
    return sampling.temperature <= GREEDY_BELOW and sampling.logprobs is None and not is_shaped(sequence)


def _no_token(largest: float) -> EngineDown:
    return EngineDown(f"No token can be chosen, because the largest logit is {largest}; use another dtype or bias.")
