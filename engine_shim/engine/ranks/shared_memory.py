"""Memory of one engine that its rank processes map too."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import torch

from engine_shim.fabric.device_memory import bytes_at
from engine_shim.fabric.mapping import CudaMapper
from router.contract.errors import BadSettings
from router.contract.kv import Region

Memory = mmap.mmap | torch.Tensor
"""On the host, or uint8 on a GPU."""

Handle = int | torch.Tensor | bytes
"""What a rank process is given: a file descriptor that it has inherited; memory of the GPU on which it computes, which
travels as a handle; or the card of memory on another GPU."""


@dataclass(slots=True)
class SharedMemory:
    """Zeros at the start; on the host, its pages are first touched when they are written."""

    memory: Memory
    fd: int = -1
    """Of memory on the host."""

    def handle_for(self, device: torch.device) -> Handle:
        """For a rank that computes on `device`. Raises BadSettings where the driver cannot share the memory."""
        if not isinstance(self.memory, torch.Tensor):
            return self.fd
        if self.memory.device == device:
            return self.memory
        card = CudaMapper(_region_of(self.memory)).card()
        if not card:
            raise BadSettings(
                f"The KV cache on {self.memory.device} cannot be shared with {device}; name one GPU with --devices, or "
                "set no expandable_segments in PYTORCH_CUDA_ALLOC_CONF."
            )
        return card

    @property
    def fds(self) -> tuple[int, ...]:
        """What rank processes have to inherit."""
        return () if isinstance(self.memory, torch.Tensor) else (self.fd,)

    def close(self) -> None:
        """Memory of the host is gone with its last mapping, and no process is given it any more; may be repeated."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def share_memory(name: str, num_bytes: int, device: torch.device) -> SharedMemory:
    """Memory without a file, which is gone when the last process that has it mapped is."""
    if device.type != "cpu":
        return SharedMemory(torch.zeros(num_bytes, dtype=torch.uint8, device=device))
    fd = os.memfd_create(name)
    os.ftruncate(fd, num_bytes)
    return SharedMemory(mmap.mmap(fd, num_bytes), fd)


def map_memory(handle: Handle, num_bytes: int, device: torch.device) -> Memory:
    """The same memory in another process, for what computes on `device`, which has been used before.

    Raises:
        BadSettings: `device` cannot address it.
    """
    if isinstance(handle, int):
        return mmap.mmap(handle, num_bytes)
    if isinstance(handle, torch.Tensor):
        return handle
    base = CudaMapper(Region(0, 0, "cuda", device.index)).open(handle)
    if base is None:
        raise BadSettings(f"{device} cannot address the engine's KV cache on another GPU; name one GPU with --devices.")
    return bytes_at(base, num_bytes, device)


def _region_of(memory: torch.Tensor) -> Region:
    return Region(memory.data_ptr(), memory.numel(), "cuda", memory.device.index)
