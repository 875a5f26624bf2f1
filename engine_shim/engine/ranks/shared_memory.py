"""Memory of one engine that its rank processes map too."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import torch

Memory = mmap.mmap | torch.Tensor
"""On the host, or uint8 on a GPU."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Zeros at the start; on the host, its pages are first touched when they are written."""

    memory: Memory
    handle: int | torch.Tensor
    """What a rank process is given: a file descriptor that it has inherited, or the tensor, sent as a handle."""

    @property
    def fds(self) -> tuple[int, ...]:
        """What rank processes have to inherit."""
        return (self.handle,) if isinstance(self.handle, int) else ()


def share_memory(name: str, num_bytes: int, device: torch.device) -> SharedMemory:
    """Memory without a file, which is gone when the last process that has it mapped is."""
    if device.type != "cpu":
        memory = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        return SharedMemory(memory, memory)
    fd = os.memfd_create(name)
    os.ftruncate(fd, num_bytes)
    return SharedMemory(mmap.mmap(fd, num_bytes), fd)


def map_memory(handle: int | torch.Tensor, num_bytes: int) -> Memory:
    """The same memory in another process."""
    return mmap.mmap(handle, num_bytes) if isinstance(handle, int) else handle
