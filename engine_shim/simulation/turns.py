"""Turns: worlds with conversations, whose KV comes back from decode, and what goes wrong just then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine_shim.simulation.chaos import Fault, draw_fault
from engine_shim.simulation.engine import Prompt

TURNS = 0x7EC411
"""Tells this source of chance from the world's own, so that other worlds are what they were before."""
_SHARE = 0.25
NUM_BLOCKS = 16
"""Of each engine's KV cache in these worlds: what is kept of one turn is not always gone by the next."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The conversations of one world."""

    prompts: tuple[tuple[float, Prompt], ...]
    """When each turn is asked; it begins with the prompts of those before."""
    faults: tuple[Fault, ...]


def draw_turns(seed: int, hosts: Sequence[str]) -> Turns | None:
    """Conversations of this world; None: it has none, and no return path."""
    rng = random.Random(seed ^ TURNS)
    if rng.random() >= _SHARE:
        return None
    prompts = [turn for number in range(rng.choice((1, 1, 2))) for turn in _draw_conversation(rng, f"talk{number + 1}")]
    faults = [replace(draw_fault(rng, hosts), moment="recall") for _ in range(rng.choice((0, 1, 1, 2)))]
    return Turns(tuple(prompts), tuple(faults))


def _draw_conversation(rng: random.Random, name: str) -> list[tuple[float, Prompt]]:
    at_s, num_blocks, turns = 2.0 * rng.random(), rng.choice((2, 3)), []
    for _ in range(rng.choice((3, 4, 5))):
        prefill_for_s = rng.choice((0.05, 0.2, 1.0))
        turns.append((at_s, Prompt(num_blocks, rng.choice((1, 2, 4)), prefill_for_s, False, True, conversation=name)))
        at_s += rng.choice((0.7, 1.5, 3.0))
        num_blocks += rng.choice((1, 2))
    return turns
