"""Sampler: the next token of each row of logits."""

from __future__ import annotations

import torch


def sample(logits: torch.Tensor) -> list[int]:
    """The arg max of each row; ties go to the lowest token id."""
    return logits.argmax(dim=-1).tolist()
