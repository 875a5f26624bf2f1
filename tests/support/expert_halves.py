"""A tiny mixture of experts, computed in one piece and in halves."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_shim.bench.expert_processes import Link
from engine_shim.engine.ranks.halves import forward_in_halves
from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.expert_share import ExpertShare, expert_shape
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.model import Model
from engine_shim.engine.reference.safetensors_dir import SafetensorsCheckpoint
from engine_shim.engine.reference.seeded_models import seeded_model
from engine_shim.engine.reference.settings import Numerics
from engine_shim.engine.reference.weights import Holding, load_weights
from engine_shim.experts.group import ExpertGroup
from engine_shim.experts.port import Experts
from engine_shim.experts.shape import ExpertShape
from router.contract.kv import KVLayout

CPU = torch.device("cpu")
BLOCKS = 4
"""Of each sequence, 16 tokens each."""
LENGTHS = ((5, 1, 33, 7), (), (2,), (1, 1, 40))
"""Rows of each sequence, batch by batch: some ranks have none, some halves have none."""


@dataclass(frozen=True)
class Mixture:
    """A model and what its cache looks like."""

    model: Model
    layout: KVLayout


def tiny_shape(num_ranks: int) -> ExpertShape:
    config = SafetensorsCheckpoint(seeded_model("tiny-moe")).config
    return expert_shape(config, torch.float32, ExpertShare(num_ranks, max_tokens=64))


def tiny_mixture(name: str, experts: Experts | None) -> Mixture:
    checkpoint, kernels = SafetensorsCheckpoint(seeded_model(name)), kernels_of(Numerics.INVARIANT)
    config = checkpoint.config
    weights = load_weights(checkpoint, torch.float32, CPU, kernels, Holding(experts))
    layout = KVLayout(
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        block_tokens=16,
        num_blocks=BLOCKS * max(map(len, LENGTHS)),
        dtype="float32",
    )
    return Mixture(Model(config, weights, 64, kernels), layout)


@torch.inference_mode()
def halves_are_the_whole(mixture: Mixture, rank: int) -> bool:
    """Bit by bit, hidden states and KV, for batches of this rank; all ranks take all of them together."""
    right = True
    for number in range(len(LENGTHS)):
        lengths = LENGTHS[(number + rank) % len(LENGTHS)]
        chunks = [
            Chunk([(7 * rows + at) % 256 for at in range(rows)], 0, list(range(BLOCKS * one, BLOCKS * (one + 1))), 1)
            for one, rows in enumerate(lengths)
        ]
        whole, halves = KVCache(mixture.layout, CPU), KVCache(mixture.layout, CPU)
        for cache in (whole, halves):
            cache.tensor.zero_()
        expected = mixture.model.forward(make_batch(chunks, 16, CPU), whole)
        found = forward_in_halves(mixture.model, chunks, halves)
        right = right and torch.equal(expected, found) and torch.equal(whole.tensor, halves.tensor)
    return right


def compute_in_halves(group: ExpertGroup, link: Link) -> None:
    """Tells whether halves over these ranks are the whole."""
    link.send(halves_are_the_whole(tiny_mixture("tiny-moe", group), group.rank))
    link.recv()
