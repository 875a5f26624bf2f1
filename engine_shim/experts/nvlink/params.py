"""What the kernels are given: the Python twin of csrc/params.cuh. `library` refuses a library whose struct differs."""

from __future__ import annotations

import ctypes

from engine_shim.experts.nvlink.region import MAX_RANKS

POINTERS = (
    "state",
    "run_offset",
    "dst_row",
    "src_row",
    "src_tokens",
    "landed_row",
    "expert_rows",
    "expert_start",
    "alive",
    "error",
    "status",
    "tokens",
    "topk_ids",
    "weights",
    "num_tokens",
    "expert_out",
    "out",
)
OFFSETS = (
    "refused",
    "counts",
    "arrived",
    "ready",
    "x",
    "scale",
    "y",
    "stage_x",
    "stage_scale",
    "stage_route",
    "partial",
)
NUMBERS = (
    "me",
    "ranks",
    "experts",
    "local_experts",
    "topk",
    "hidden",
    "max_tokens",
    "given_tokens",
    "given_rows",
    "chunks",
    "align",
    "ids_are_64",
    "fp8",
    "f32",
    "copy_expert_out",
    "both_halves",
)


class Params(ctypes.Structure):
    """Given to every kernel, by value."""

    _fields_ = (
        ("region", ctypes.c_uint64 * MAX_RANKS),
        *((name, ctypes.c_int64) for name in OFFSETS),
        *((name, ctypes.c_uint64) for name in POINTERS),
        ("timeout_ns", ctypes.c_uint64),
        *((name, ctypes.c_int32) for name in NUMBERS),
    )
