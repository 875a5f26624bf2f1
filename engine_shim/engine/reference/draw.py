"""Draw: one token at random from logits, by one uniform number.

The kept tokens' probabilities are laid end to end on a line, and the token under the number is the one drawn. The
number is a function of (seed, index of the output token), so that a sequence draws the same tokens in every batch,
after a preemption, and on another engine.
"""

from __future__ import annotations

import hashlib

import torch

from engine_shim.engine.port import SamplingParams

_FIRST_WIDTH = 256
"""Tokens that are sorted at first when only their total probability limits how many are kept."""
_WIDENING = 8


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1), uniform over indices and seeds: 53 bits of blake2b."""
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53


def draw(row: torch.Tensor, sampling: SamplingParams, number: float) -> torch.Tensor:
    """The token id that `number` picks from `row` (float32 [vocab]); int64, no dimensions, on the row's device.

    Temperature first, then the `top_k` likeliest, of these the fewest that hold `top_p` of their probability, and
    none below `min_p` times the likeliest.
    """
    # Relative to the maximum first: a tiny temperature then gives -inf, never inf - inf.
    probabilities = ((row - row.max()) / sampling.temperature).softmax(-1)
    has_top_k = 0 < sampling.top_k < len(row)
    if not has_top_k and sampling.top_p >= 1.0 and sampling.min_p <= 0.0:
        return _under(probabilities, number)
    kept, token_ids = _likeliest(probabilities, sampling.top_k if has_top_k else 0, sampling.top_p)
    kept = kept.double()
    before = kept.cumsum(-1) - kept
    is_kept = (before < sampling.top_p * kept.sum()) if sampling.top_p < 1.0 and has_top_k else before < sampling.top_p
    is_kept &= kept >= sampling.min_p * kept[0]
    is_kept[0] = True
    return token_ids[_under(kept * is_kept, number)]


def _likeliest(probabilities: torch.Tensor, top_k: int, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities in descending order with their ids: `top_k` of them, or enough to hold `top_p`."""
    if top_k:
        kept, token_ids = probabilities.topk(top_k)
        return kept, token_ids
    width = _FIRST_WIDTH if top_p < 1.0 else len(probabilities)
    while width < len(probabilities):
        kept, token_ids = probabilities.topk(width)
        if float(kept.sum()) >= top_p:
            return kept, token_ids
        width *= _WIDENING
    kept, token_ids = probabilities.sort(descending=True)
    return kept, token_ids


def _under(weights: torch.Tensor, number: float) -> torch.Tensor:
    """Index of the weight under `number` of the whole; never one of weight 0."""
    ends = weights.cumsum(-1, dtype=torch.float64)
    point = ends[-1:] * number
    return torch.searchsorted(ends, point, right=True).clamp_(max=len(weights) - 1).squeeze(0)
