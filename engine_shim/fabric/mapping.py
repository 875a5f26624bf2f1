"""Mapping: the cache of a peer on the same host, as our GPU's kernels address it, by CUDA IPC.

UCX maps the same memory for NIXL; what it cannot do is to copy thousands of pieces at once. A mapping gives a peer no
more than the registration beside it does, and it is told in the same sealed handshake.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Any, Protocol

from router.contract.kv import Region

HANDLE_BYTES = 64
LAZY_PEER_ACCESS = 1
_CARD = struct.Struct(f">{HANDLE_BYTES}sQ")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Mapper(Protocol):
    """Shares our cache, and opens those of peers."""

    def card(self) -> bytes:
        """What a peer needs for `open`; empty where our cache cannot be shared."""

    def open(self, card: bytes) -> int | None:
        """Where our kernels find the peer's Region; None when they cannot reach it."""

    def close(self, base: int) -> None:
        """The peer's Region is forgotten; no kernel of ours uses it any more."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


class CudaMapper:
    """CUDA's driver API, since a Region is an address and no tensor. Of one thread, as the fabric is."""

    def __init__(self, cache: Region) -> None:
        # Any: ctypes knows its functions by name only.
        self._cuda: Any = ctypes.CDLL("libcuda.so.1")
        # Only where there is a GPU.
        import torch  # noqa: PLC0415

        self._on_device = torch.cuda.device(cache.device_id)
        self._cache = cache
        self._opened: dict[int, int] = {}
        """Begin of the peer's allocation by the base of its Region."""

    def card(self) -> bytes:
        """See Mapper; memory of torch's expandable segments, for one, cannot be shared."""
        begin, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
        base = ctypes.c_uint64(self._cache.base)
        with self._on_device:
            if self._cuda.cuMemGetAddressRange_v2(ctypes.byref(begin), ctypes.byref(size), base):
                return b""
            if self._cuda.cuIpcGetMemHandle(ctypes.byref(handle), base):
                return b""
        return _CARD.pack(bytes(handle), self._cache.base - begin.value) + _BOOT_ID.read_bytes()

    def open(self, card: bytes) -> int | None:
        """See Mapper; a peer on another host is out of reach."""
        if len(card) <= _CARD.size or card[_CARD.size :] != _BOOT_ID.read_bytes():
            return None
        raw, offset = _CARD.unpack(card[: _CARD.size])
        begin, handle = ctypes.c_uint64(), _Handle.from_buffer_copy(raw)
        with self._on_device:
            if self._cuda.cuIpcOpenMemHandle_v2(ctypes.byref(begin), handle, ctypes.c_uint(LAZY_PEER_ACCESS)):
                return None
        base = int(begin.value + offset)
        self._opened[base] = begin.value
        return base

    def close(self, base: int) -> None:
        """See Mapper."""
        begin = self._opened.pop(base, None)
        if begin is not None:
            with self._on_device:
                self._cuda.cuIpcCloseMemHandle(ctypes.c_uint64(begin))


def open_mapper(cache: Region) -> Mapper | None:
    """For a cache in GPU memory; None for others."""
    return CudaMapper(cache) if cache.device == "cuda" else None
