"""Arguments of a step that the kernels cannot take are refused, on whatever device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine_shim.experts.nvlink.arguments import check_inputs, check_memory, live_tokens
from engine_shim.experts.shape import ExpertShape, RowFormat
from router.contract.errors import BadRequest

CPU = torch.device("cpu")
SHAPE = ExpertShape(num_ranks=2, num_experts=4, top_k=2, hidden_size=128, max_tokens=4)
X = torch.zeros(3, 128, dtype=torch.bfloat16)
TOPK = torch.zeros(3, 2, dtype=torch.int32)
WEIGHTS = torch.zeros(3, 2)
COUNTS = torch.arange(5, dtype=torch.int32)


def test_what_fits_is_taken() -> None:
    check_inputs(SHAPE, CPU, X, TOPK, WEIGHTS)
    check_inputs(SHAPE, CPU, X[:0], TOPK[:0].long(), WEIGHTS[:0])
    whole = replace(SHAPE, dispatch_format=RowFormat.F32, combine_format=RowFormat.F32)
    check_inputs(whole, CPU, X.float(), TOPK, WEIGHTS)
    with pytest.raises(BadRequest, match="float32"):
        check_inputs(whole, CPU, X, TOPK, WEIGHTS)


@pytest.mark.parametrize(
    ("x", "topk", "weights", "said"),
    [
        (X.float(), TOPK, WEIGHTS, "bfloat16"),
        (X[:, :64], TOPK, WEIGHTS, "128"),
        (X.repeat(2, 1), TOPK, WEIGHTS, "several steps"),
        (X, TOPK.float(), WEIGHTS, "int32 or int64"),
        (X, TOPK[:2], WEIGHTS, "int32 or int64"),
        (X, TOPK, WEIGHTS.double(), "float32"),
        (X, TOPK, WEIGHTS[:, :1], "float32"),
        (torch.zeros(3, 256, dtype=torch.bfloat16)[:, ::2], TOPK, WEIGHTS, "contiguous"),
    ],
)
def test_what_does_not_is_refused(x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor, said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        check_inputs(SHAPE, CPU, x, topk, weights)


def test_memory_between_two_vectors_is_refused() -> None:
    memory = torch.zeros(129, dtype=torch.bfloat16)
    check_memory(memory, "It", CPU)
    with pytest.raises(BadRequest, match="multiple of 16 bytes"):
        check_memory(memory[1:], "It", CPU)


def test_the_live_count_is_read_where_it_lies() -> None:
    assert int(live_tokens(COUNTS, 3, None)[0]) == 3
    assert int(live_tokens(COUNTS, 3, 0)[0]) == 0
    scalar = torch.tensor([2], dtype=torch.int32)
    assert live_tokens(COUNTS, 3, scalar) is scalar


@pytest.mark.parametrize("count", [4, -1, torch.tensor([1]), torch.tensor([1, 2], dtype=torch.int32)])
def test_a_wrong_live_count_is_refused(count: int | torch.Tensor) -> None:
    with pytest.raises(BadRequest):
        live_tokens(COUNTS, 3, count)
