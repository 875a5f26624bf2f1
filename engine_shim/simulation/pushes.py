"""How prefill tells of a prompt's KV while it computes, and how pushes of it are cut, in one world."""

from __future__ import annotations

import random

from engine_shim.core.push import PushLimits
from engine_shim.simulation.engine import BLOCK_TOKENS
from engine_shim.simulation.memory import ALL_LAYERS
from engine_shim.simulation.scene import Scene

LAYERS = 0x1A7E5000
"""Tells this source of chance from the others, so that worlds without layers are what they were before."""


def draw_pushes(scene: Scene, seed: int, rng: random.Random) -> None:
    """Prefill tells of chunks, and maybe of layers; WRITEs are long or short, one to three of them at once."""
    scene.chunk_blocks = rng.choice((1, 1, 2))
    blocks = (rng.choice((1, 1, 2)), rng.choice((1, 2, 9)))
    least, most = (BLOCK_TOKENS * num_blocks for num_blocks in blocks)
    most_writes, num_layers = rng.choice((1, 2, 3)), 0
    layers = random.Random(seed ^ LAYERS)
    if layers.random() < 0.5:
        scene.in_layers, num_layers = True, len(ALL_LAYERS)
        scene.chunk_blocks, least = layers.choice((1, 2, 9)), layers.choice((1, least))
    scene.limits = PushLimits(BLOCK_TOKENS, least, most, most_writes, num_layers)
