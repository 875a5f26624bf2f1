"""Memory of an agent under test, on the host or on a GPU, seen as bytes."""

from __future__ import annotations

import mmap
import time
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine_shim.core.transfer_plan import TransferPlan
from router.contract.kv import Region

Bytes = npt.NDArray[np.uint8]
POISON = 0xA5


class Memory(Protocol):
    """One Region and what a test does with it."""

    @property
    def region(self) -> Region:
        """For the fabric."""

    def load(self, content: Bytes) -> None:
        """The memory begins with these bytes."""

    def save(self) -> Bytes:
        """All of it, on the host."""

    def copy_halves(self, num_bytes: int) -> float:
        """Seconds that a plain copy of so many bytes within this memory took."""


class HostMemory:
    """Pages of this process."""

    def __init__(self, num_bytes: int) -> None:
        self._bytes = np.frombuffer(mmap.mmap(-1, num_bytes), dtype=np.uint8)
        self._bytes[:] = 0
        self.region = Region(self._bytes.ctypes.data, num_bytes, "cpu")

    def load(self, content: Bytes) -> None:
        """See Memory."""
        self._bytes[: len(content)] = content

    def save(self) -> Bytes:
        """See Memory."""
        return self._bytes.copy()

    def copy_halves(self, num_bytes: int) -> float:
        """See Memory."""
        half = len(self._bytes) // 2
        began = time.perf_counter()
        self._bytes[half : half + num_bytes] = self._bytes[:num_bytes]
        return time.perf_counter() - began


class CudaMemory:
    """Memory of a GPU."""

    def __init__(self, num_bytes: int, device_id: int) -> None:
        import torch  # noqa: PLC0415  only where there is a GPU

        # Any: torch is loaded here alone.
        self._torch: Any = torch
        torch.cuda.set_device(device_id)
        self._bytes = torch.zeros(num_bytes, dtype=torch.uint8, device=f"cuda:{device_id}")
        torch.cuda.synchronize()
        self.region = Region(self._bytes.data_ptr(), num_bytes, "cuda", device_id)

    def load(self, content: Bytes) -> None:
        """See Memory."""
        self._bytes[: len(content)].copy_(self._torch.from_numpy(content))
        self._torch.cuda.synchronize()

    def save(self) -> Bytes:
        """See Memory."""
        self._torch.cuda.synchronize()
        content: Bytes = self._bytes.cpu().numpy()
        return content

    def copy_halves(self, num_bytes: int) -> float:
        """See Memory."""
        half = len(self._bytes) // 2
        began = time.perf_counter()
        self._bytes[half : half + num_bytes].copy_(self._bytes[:num_bytes])
        self._torch.cuda.synchronize()
        return time.perf_counter() - began


def take_memory(device: str, num_bytes: int) -> Memory:
    """Memory of that size on `cpu` or `cuda:N`."""
    kind, _, index = device.partition(":")
    return HostMemory(num_bytes) if kind == "cpu" else CudaMemory(num_bytes, int(index or 0))


@lru_cache(2)
def noise(num_bytes: int, seed: int) -> Bytes:
    """The same random bytes for the same seed, in every process; not to be written."""
    words = np.random.default_rng(seed).integers(0, 1 << 64, -(-num_bytes // 8), dtype=np.uint64)
    return words.view(np.uint8)[:num_bytes]


def poison(num_bytes: int) -> Bytes:
    """What a target holds before a transfer that will be checked."""
    return np.full(num_bytes, POISON, dtype=np.uint8)


def count_wrong_bytes(target: Bytes, source: Bytes, plan: TransferPlan) -> int:
    """Bytes of a once poisoned target that are not what the plan puts there, strangers included."""
    wanted = poison(len(target))
    for span in plan.spans:
        wanted[span.dst_offset : span.dst_offset + span.num_bytes] = source[
            span.src_offset : span.src_offset + span.num_bytes
        ]
    return int(np.count_nonzero(wanted != target))
