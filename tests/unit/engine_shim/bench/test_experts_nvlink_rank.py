"""What the benchmark computes by itself: routings and the bytes that leave a rank."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from engine_shim.bench import experts_nvlink_rank
from engine_shim.bench.experts_nvlink_rank import are_right, leaving_bytes, make_inputs
from engine_shim.experts.shape import ExpertNumerics, ExpertShape

SHAPE = ExpertShape(num_ranks=2, num_experts=8, top_k=3, hidden_size=128, max_tokens=64)
TOPK = torch.tensor([[0, 1, 4], [5, 6, 7], [0, 1, 2]])


def test_every_copy_to_another_rank_is_on_the_wire() -> None:
    assert leaving_bytes(SHAPE, TOPK, rank=0) == (4 * 132, 4 * 256)


def test_de_duplicated_a_token_is_on_the_wire_once_per_rank() -> None:
    dedup = replace(SHAPE, numerics=ExpertNumerics.DEDUP)
    assert leaving_bytes(dedup, TOPK, rank=0) == (2 * 132, 2 * 256)
    assert leaving_bytes(dedup, TOPK, rank=1) == (2 * 132, 2 * 256)


@pytest.mark.parametrize(("routing", "least", "most"), [("uniform", 10, 40), ("zipf", 41, 63), ("hot", 64, 64)])
def test_routings_differ_in_how_often_the_first_expert_is_chosen(routing: str, least: int, most: int) -> None:
    topk = make_inputs(SHAPE, routing, 0, 1, torch.device("cpu")).topk
    assert least <= int((topk == 0).any(1).sum()) <= most
    assert all(len(set(row)) == 3 for row in topk.tolist())


def test_inputs_are_a_function_of_rank_and_step() -> None:
    cpu = torch.device("cpu")
    first, again = (make_inputs(SHAPE, "uniform", 1, 2, cpu) for _ in range(2))
    assert first.x.equal(again.x) and first.topk.equal(again.topk)
    assert not first.x.equal(make_inputs(SHAPE, "uniform", 0, 2, cpu).x)


@pytest.mark.parametrize(("errors", "right"), [([0.0, 0.01], True), ([0.01, 0.5], False), ([0.01, math.nan], False)])
def test_errors_are_small_numbers(errors: list[float], right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_nvlink_rank, "slowest", lambda own: own)
    assert are_right(errors) is right


def test_what_is_wrong_on_another_rank_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_nvlink_rank, "slowest", lambda _own: [1.0])
    assert not are_right([0.0])
