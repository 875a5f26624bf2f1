"""When a sequence ends, and why."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from engine_shim.engine.port import FinishReason, Purpose
from engine_shim.engine.reference.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sequence ended."""

    reason: FinishReason
    stop_reason: str | int | None = None
    """The stop string or stop token id that matched."""
    by_token: bool = False
    """True when the last token is a mark of the end rather than a part of the text."""


def ending_of(sequence: Sequence, eos_token_ids: Container[int], max_context_tokens: int) -> Ending | None:
    """Why `sequence` ends with its newest token, or None when it goes on. Stop strings are not looked at."""
    sampling, token_id = sequence.sampling, sequence.tokens[-1]
    if sequence.num_output_tokens >= sampling.min_tokens:
        if token_id in sampling.stop_token_ids:
            return Ending(FinishReason.STOP, stop_reason=token_id, by_token=True)
        if token_id in eos_token_ids and not sampling.ignore_eos:
            return Ending(FinishReason.STOP, by_token=True)
    has_all = sequence.num_output_tokens >= sampling.max_tokens or sequence.purpose is Purpose.HOLD
    if has_all or len(sequence.tokens) >= max_context_tokens:
        return Ending(FinishReason.LENGTH)
    return None
