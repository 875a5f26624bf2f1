"""Rank processes of the GPU benchmark: who meets whom, on which GPU.

With a GPU for each rank they meet through NCCL. With more ranks than GPUs several share one, which NCCL refuses: they
meet through gloo, and their kernels take turns on the GPU. Such times say that all parts work together, and nothing of
a link between GPUs.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from engine_shim.experts.nvlink.library import KernelLibrary
from engine_shim.experts.nvlink.peers import PeerRegions, regions_by_handle, symmetric_regions


def is_shared(ranks: int) -> bool:
    """True where several ranks have one GPU."""
    return ranks > torch.cuda.device_count()


def join_world(rank: int, ranks: int, port: int) -> torch.device:
    """All ranks have met; the GPU of this one is the current device."""
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    own = None if is_shared(ranks) else device
    backend, method = "nccl" if own else "gloo", f"tcp://127.0.0.1:{port}"
    dist.init_process_group(backend, init_method=method, rank=rank, world_size=ranks, device_id=own)
    return device


def everybodys(own: bytes) -> list[bytes]:
    """What each rank gave, in their order."""
    found: list[bytes] = [b""] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found


def world_regions(num_bytes: int, device: torch.device, library: KernelLibrary, *, by_handle: bool) -> PeerRegions:
    """Regions of all ranks, by CUDA IPC where it is asked for or ranks share a GPU."""
    if by_handle or is_shared(dist.get_world_size()):
        return regions_by_handle(num_bytes, device, dist.get_rank(), everybodys, library)
    group = dist.group.WORLD
    assert group is not None
    return symmetric_regions(num_bytes, device, group.group_name)


def slowest(own_us: list[float]) -> list[float]:
    """Element by element the largest of all ranks."""
    times = torch.tensor(own_us, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(times, dist.ReduceOp.MAX)
    result: list[float] = times.tolist()
    return result
