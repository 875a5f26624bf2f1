"""What the kernels may be given. Nothing here looks at values on a GPU: that would wait for it."""

from __future__ import annotations

import torch

from engine_shim.experts.quantise import DTYPES
from engine_shim.experts.shape import ExpertShape
from router.contract.errors import BadRequest

VECTOR_BYTES = 16


def check_inputs(
    shape: ExpertShape, device: torch.device, x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor
) -> None:
    """A step of these can be dispatched.

    Raises:
        BadRequest: a type, size or place that the kernels cannot take.
    """
    check_rows(shape, x, "x", "tokens")
    if len(x) > shape.max_tokens:
        raise BadRequest(
            f"This rank has {len(x)} tokens, but the group was made for {shape.max_tokens}; take several steps."
        )
    wanted = (len(x), shape.top_k)
    if topk.dtype not in (torch.int32, torch.int64) or topk.shape != wanted:
        raise BadRequest(f"Choices must be int32 or int64 {[*wanted]}, not {topk.dtype} {[*topk.shape]}.")
    if weights.dtype is not torch.float32 or weights.shape != wanted:
        raise BadRequest(f"Weights must be float32 {[*wanted]}, not {weights.dtype} {[*weights.shape]}.")
    for tensor, name in ((x, "x"), (topk, "Choices"), (weights, "Weights")):
        check_memory(tensor, name, device)


def check_rows(shape: ExpertShape, rows: torch.Tensor, name: str, what: str) -> None:
    """The rows are as wide as the group's, and of the type of its answers: bfloat16 or float32.

    Raises:
        BadRequest: another type or width.
    """
    dtype = DTYPES[shape.combine_format]
    if rows.dtype is not dtype or rows.dim() != 2 or rows.shape[1] != shape.hidden_size:
        wanted = f"{str(dtype).removeprefix('torch.')} [{what}, {shape.hidden_size}]"
        raise BadRequest(f"{name} must be {wanted}, not {rows.dtype} {[*rows.shape]}.")


def check_memory(tensor: torch.Tensor, name: str, device: torch.device) -> None:
    """The kernels can read `tensor` in vectors.

    Raises:
        BadRequest: it is elsewhere, has gaps, or begins between two vectors.
    """
    if tensor.device != device or not tensor.is_contiguous() or tensor.data_ptr() % VECTOR_BYTES:
        raise BadRequest(f"{name} must lie contiguous on {device}, at a multiple of {VECTOR_BYTES} bytes.")


def live_tokens(token_counts: torch.Tensor, given: int, num_tokens: int | torch.Tensor | None) -> torch.Tensor:
    """int32 on the device whose first element is the live token count.

    Args:
        token_counts: int32 [max_tokens + 1] on the device, 0, 1, 2, ...
        given: rows of x.
        num_tokens: a number, or one int32 on the device, which a captured graph reads at each replay; None: all given.
    Raises:
        BadRequest: another type or place, or a number beyond what was given.
    """
    if isinstance(num_tokens, torch.Tensor):
        if num_tokens.dtype is not torch.int32 or num_tokens.numel() != 1 or num_tokens.device != token_counts.device:
            raise BadRequest(f"The live token count must be one int32 on {token_counts.device}.")
        return num_tokens
    live = given if num_tokens is None else num_tokens
    if not 0 <= live <= given:
        raise BadRequest(f"{live} tokens were announced and {given} were given.")
    return token_counts[live:]
