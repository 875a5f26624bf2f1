"""Shaping: what a request's parameters do to logits before a token is chosen.

In this order: what may not come yet is masked, biases are added, then the penalties take effect (those of OpenAI's API
on the output alone, the multiplicative one of Keskar et al. 2019 (CTRL) on prompt and output).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from engine_shim.engine.port import SamplingParams
from engine_shim.engine.reference.sequence import Sequence


def is_shaped(sequence: Sequence) -> bool:
    """True when `shape_` would change the next token's logits."""
    sampling = sequence.sampling
    return bool(
        sampling.logit_bias
        or sampling.presence_penalty
        or sampling.frequency_penalty
        or sampling.repetition_penalty != 1.0
        or sequence.num_output_tokens < sampling.min_tokens
    )


def shape_(row: torch.Tensor, sequence: Sequence, eos_token_ids: tuple[int, ...]) -> None:
    """`row`, float32 [vocab], is as the parameters of `sequence` want it for its next token."""
    sampling = sequence.sampling
    if sequence.num_output_tokens < sampling.min_tokens:
        ends = (*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids))
        row[_ids(ends, row)] = -torch.inf
    if sampling.logit_bias:
        row[_ids((token_id for token_id, _ in sampling.logit_bias), row)] += _values(
            (bias for _, bias in sampling.logit_bias), row
        )
    if sampling.repetition_penalty != 1.0:
        seen = _ids(sequence.output_counts.keys() | set(sequence.tokens[: sequence.num_prompt_tokens]), row)
        scores = row[seen]
        penalty = sampling.repetition_penalty
        row[seen] = torch.where(scores > 0, scores / penalty, scores * penalty)
    if sequence.output_counts and (sampling.presence_penalty or sampling.frequency_penalty):
        _penalise_output_(row, sampling, sequence.output_counts)


def _penalise_output_(row: torch.Tensor, sampling: SamplingParams, counts: dict[int, int]) -> None:
    times = _values(counts.values(), row)
    row[_ids(counts.keys(), row)] -= sampling.frequency_penalty * times + sampling.presence_penalty


def _ids(token_ids: Iterable[int], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(token_ids), dtype=torch.int64, device=like.device)


def _values(values: Iterable[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(values), dtype=like.dtype, device=like.device)
