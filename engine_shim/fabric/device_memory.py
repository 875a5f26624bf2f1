"""Memory at an address, as torch sees it."""

from __future__ import annotations

from typing import Any

import torch


def bytes_at(address: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    """uint8 [num_bytes] that lies there and counts as `device`'s; nothing is copied, and nothing keeps it alive.

    On a GPU it may be memory of another one that this one's kernels can address: torch's public ways ask the driver
    whose it is, and would copy it.
    """
    # Any: torch leaves it untyped.
    core: Any = torch._C
    storage = core._construct_storage_from_data_pointer(address, device, num_bytes)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
