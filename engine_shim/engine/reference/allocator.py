"""Make the C allocator keep what a forward pass gives back.

Activations of a prompt are megabytes that live for one operation. By default glibc returns such memory to the kernel at
once, and the next operation pays for every page of it again, which costs more than the arithmetic.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 128 << 20
"""Free memory at the end of the heap that is kept."""
LARGEST_KEPT_BYTES = 32 << 20
"""Blocks above this size are always returned; the largest threshold that glibc takes."""


def keep_freed_memory() -> bool:
    """Freed blocks are used again, process-wide; False where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, LARGEST_KEPT_BYTES))


def return_freed_memory() -> None:
    """What is free now goes back to the kernel, once."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
