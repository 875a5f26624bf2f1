"""Wishes: what clients ask for, and how long they wait for it."""

from __future__ import annotations

import random
from math import inf

from engine_shim.simulation.engine import Prompt
from router.contract.wire import NO_WAITS, Waits


def draw_prompt(rng: random.Random) -> Prompt:
    """Any prompt that belongs to no conversation."""
    return Prompt(
        num_blocks=rng.choice((1, 2, 3, 5)),
        num_tokens_out=rng.choice((1, 2, 4, 8)),
        prefill_for_s=rng.choice((0.01, 0.1, 0.5, 2.0, 3.0)),
        cached=rng.random() < 0.08,
        streamed=rng.random() < 0.8,
    )


def draw_waits(rng: random.Random) -> Waits:
    """Some clients have less patience for a phase than the shims."""
    if rng.random() < 0.8:
        return NO_WAITS
    return Waits(rng.choice((0.2, 1.0, 3.0, inf)), rng.choice((0.2, 1.0, 3.0, inf)))
