"""Memory of one engine that its rank processes map too."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Zeros at the start; its pages are first touched when they are written."""

    fd: int
    memory: mmap.mmap


def share_memory(name: str, num_bytes: int) -> SharedMemory:
    """Memory without a file, which is gone when the last process that has it mapped is."""
    fd = os.memfd_create(name)
    os.ftruncate(fd, num_bytes)
    return SharedMemory(fd, mmap.mmap(fd, num_bytes))


def map_memory(fd: int, num_bytes: int) -> mmap.mmap:
    """The same memory in another process, which has inherited `fd`."""
    return mmap.mmap(fd, num_bytes)
