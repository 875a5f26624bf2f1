"""nixl_ep beside ours in the same run: NIXL's port of DeepEP's low-latency kernels, from its wheel.

Its shapes are its own: hidden sizes and top-k that were compiled in, exact numerics, fp8 dispatch, bf16 combine, a
buffer for every (expert, source). Its outputs are held to the same check as ours before a time is told.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
import torch.distributed as dist

from engine_shim.bench.experts_nvlink_rank import Inputs
from engine_shim.experts.quantise import Rows, pack_rows, unpack_rows
from engine_shim.experts.shape import ExpertShape

PACKAGES = ("nixl_ep_cu13", "nixl_ep_cu12")
TIMEOUT_MS = 10_000


# Any: the package has no types.
def find_nixl_ep() -> Any | str:  # noqa: ANN401
    """The package, or one line that says why there is none."""
    # Its GPU-initiated RDMA wants a network card; between GPUs of one host it is not used.
    os.environ.setdefault("UCX_TLS", "^rc_gda")
    reasons = []
    for package in PACKAGES:
        try:
            return importlib.import_module(package)
        except (ImportError, OSError) as error:
            reasons.append(f"{package}: {str(error).splitlines()[0]}")
    return "; ".join(reasons)


# Any: torch leaves stores untyped.
def open_store(port: int, *, first: bool) -> Any:  # noqa: ANN401
    """Through it all ranks tell each other how they are reached; the first one keeps it."""
    collectives: Any = dist
    store = collectives.TCPStore("127.0.0.1", port, is_master=first, wait_for_workers=False)
    dist.barrier()
    return store


def part_of_store(store: Any, name: str) -> Any:  # noqa: ANN401
    """Keys of one group: ranks may still look for those of the group before."""
    collectives: Any = dist
    return collectives.PrefixStore(name, store)


class NixlEp:
    """One rank of a nixl_ep group."""

    def __init__(self, package: Any, shape: ExpertShape, rank: int, store: Any) -> None:  # noqa: ANN401
        """All ranks are connected."""
        self._shape, self._rank = shape, rank
        self._id_type = package.topk_idx_t
        ranks, experts = shape.num_ranks, shape.num_experts
        # Its kernels copy four rows' scales at a time.
        self._most_tokens = -(-shape.max_tokens // 4) * 4
        self.buffer_bytes: int = package.Buffer.get_low_latency_buffer_size_hint(
            self._most_tokens, shape.hidden_size, ranks, experts
        )
        self._buffer = package.Buffer(rank=rank, explicitly_destroy=True, tcp_store_group=store, timeout_ms=TIMEOUT_MS)
        self._buffer.update_memory_buffers(ranks, shape.local_experts, self.buffer_bytes)
        self._buffer.connect_ranks([peer for peer in range(ranks) if peer != rank])

    # Any: what the package hands from one half to the other.
    def dispatch(self, given: Inputs) -> tuple[Any, Any]:
        """(rows [E / N, N * T, H] with their scales, handle)"""
        rows, _counts, handle, _event, _hook = self._buffer.dispatch(
            given.x, given.topk.to(self._id_type), self._most_tokens, self._shape.num_experts, use_fp8=True
        )
        return rows, handle

    def combine(self, given: Inputs, answers: torch.Tensor, handle: Any, out: torch.Tensor) -> None:  # noqa: ANN401
        """The weighted sums are in `out`."""
        self._buffer.combine(answers, given.topk.to(self._id_type), given.weights, handle, out=out)

    def answers(self) -> torch.Tensor:
        """Room for the experts' answers, as `combine` wants them."""
        shape = self._shape
        sizes = (shape.local_experts, shape.num_ranks * self._most_tokens, shape.hidden_size)
        return torch.zeros(sizes, dtype=torch.bfloat16, device="cuda")

    def check(self, given: Inputs) -> float:
        """Relative error of one step; see `experts_nvlink_rank.check_step`."""
        shape = self._shape
        gains = 1 + torch.arange(shape.num_experts, device="cuda") / shape.num_experts
        (numbers, scales), handle = self.dispatch(given)
        answers, first = self.answers(), self._rank * shape.local_experts
        for expert in range(shape.local_experts):
            rows = unpack_rows(Rows(numbers[expert], scales[expert].contiguous()))
            answers[expert] = (rows.nan_to_num() * gains[first + expert]).bfloat16()
        out = torch.empty_like(given.x)
        self.combine(given, answers, handle, out)
        seen = unpack_rows(pack_rows(given.x, shape.dispatch_format)).double()
        wanted = seen * (given.weights.double() * gains[given.topk].double()).sum(1, keepdim=True)
        return float((out.double() - wanted).norm() / wanted.norm())

    def close(self) -> None:
        """Memory is given back."""
        self._buffer.destroy()
