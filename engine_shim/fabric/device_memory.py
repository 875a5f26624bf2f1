"""A GPU's memory at an address, as torch sees it."""

from __future__ import annotations

import torch


def bytes_at(address: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    """uint8 [num_bytes] on `device` that lies there; nothing is copied, and nothing keeps the memory alive."""
    return torch.as_tensor(_Memory(address, num_bytes), device=device)


class _Memory:
    """Memory at an address, as torch takes it over without a copy."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }
