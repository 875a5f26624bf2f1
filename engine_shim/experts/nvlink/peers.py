"""Regions of one host's ranks that address each other: three ways to the same thing.

symmetric    torch's symmetric memory, over a process group; multicast is never asked for
by handle    CUDA IPC, where torch's symmetric memory is missing or there is no process group
together     all ranks in this process, on one GPU or several: for tests, and for a look at more ranks than GPUs
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_shim.experts.nvlink.library import KernelLibrary
from engine_shim.experts.nvlink.region import check_room
from engine_shim.fabric.device_memory import bytes_at
from router.contract.errors import BadSettings

IPC_HANDLE_BYTES = 64
Exchange = Callable[[bytes], list[bytes]]
"""Every rank gives its bytes and gets those of all ranks, in their order; nobody returns before all have come."""


@dataclass(frozen=True, slots=True)
class PeerRegions:
    """One rank's region, all zero at first, and where it sees those of all ranks."""

    own: torch.Tensor
    """uint8 [num_bytes] on the rank's GPU."""
    addresses: tuple[int, ...]
    """As this rank's kernels address them; its own too."""
    close: Callable[[], None]
    """Gives the memory back. No kernel of any rank may use it any more."""


def symmetric_regions(num_bytes: int, device: torch.device, group: str) -> PeerRegions:
    """Regions by torch's symmetric memory over the process group named `group`; all ranks call it together.

    Raises:
        BadSettings: there is no room; says how many bytes were wanted. So do the other two ways.
    """
    check_room(num_bytes, torch.cuda.mem_get_info(device)[0])
    # Imported here: a torch without distributed collectives has neither, and CUDA IPC serves it.
    import torch.distributed as dist  # noqa: PLC0415
    import torch.distributed._symmetric_memory as symmetric_memory  # noqa: PLC0415

    # Any: torch calls the module private and leaves it untyped.
    memory: Any = symmetric_memory
    own = memory.empty(num_bytes, dtype=torch.uint8, device=device)
    meeting = memory.rendezvous(own, group)
    own.zero_()
    torch.cuda.synchronize(device)
    dist.barrier()
    return PeerRegions(own, tuple(meeting.buffer_ptrs), close=lambda: None)


@dataclass(frozen=True, slots=True)
class SharedRegion:
    """One rank's region, which other processes can open by its handle."""

    device: torch.device
    address: int
    num_bytes: int
    handle: bytes
    library: KernelLibrary

    def meet(self, rank: int, handles: Sequence[bytes]) -> PeerRegions:
        """This region as that of `rank`, beside those of the other handles. No rank may give its own back meanwhile."""
        device, library, addresses = self.device, self.library, []
        for peer, handle in enumerate(handles):
            seen = ctypes.c_void_p(self.address)
            if peer != rank:
                library.call("tandem_open", device.index, handle, ctypes.byref(seen))
            addresses.append(seen.value or 0)

        def close() -> None:
            for peer, seen in enumerate(addresses):
                if peer != rank:
                    library.call("tandem_close", device.index, seen)
            library.call("tandem_free", device.index, self.address)

        return PeerRegions(bytes_at(self.address, self.num_bytes, device), tuple(addresses), close)


def share_region(num_bytes: int, device: torch.device, library: KernelLibrary) -> SharedRegion:
    """Memory of this process, all zero, that others can open by CUDA IPC."""
    address = _allocate(library, device, num_bytes)
    handle = ctypes.create_string_buffer(IPC_HANDLE_BYTES)
    library.call("tandem_share", address, handle)
    return SharedRegion(device, address, num_bytes, handle.raw, library)


def regions_by_handle(
    num_bytes: int, device: torch.device, rank: int, exchange: Exchange, library: KernelLibrary
) -> PeerRegions:
    """Regions by CUDA IPC; all ranks call it together, each in a process of its own."""
    shared = share_region(num_bytes, device, library)
    regions = shared.meet(rank, exchange(shared.handle))
    exchange(b"opened")
    return regions


def regions_together(num_bytes: int, devices: Sequence[torch.device], library: KernelLibrary) -> list[PeerRegions]:
    """Regions of all ranks in this process; rank r on devices[r].

    Raises:
        BadSettings: two of the GPUs cannot address each other.
    """
    for device in set(devices):
        for peer in set(devices) - {device}:
            possible = ctypes.c_int(0)
            library.call("tandem_reach", device.index, peer.index, ctypes.byref(possible))
            if not possible.value:
                raise BadSettings(f"{device} cannot address the memory of {peer}; use the NIXL transport.")
    addresses = [_allocate(library, device, num_bytes) for device in devices]

    def closing(device: torch.device, address: int) -> Callable[[], None]:
        return lambda: library.call("tandem_free", device.index, address)

    return [
        PeerRegions(bytes_at(address, num_bytes, device), tuple(addresses), closing(device, address))
        for device, address in zip(devices, addresses, strict=True)
    ]


def _allocate(library: KernelLibrary, device: torch.device, num_bytes: int) -> int:
    check_room(num_bytes, torch.cuda.mem_get_info(device)[0])
    address = ctypes.c_void_p()
    library.call("tandem_allocate", device.index, num_bytes, ctypes.byref(address))
    return address.value or 0
