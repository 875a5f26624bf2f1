"""The device that an engine computes on, when something went wrong there."""

from __future__ import annotations

import torch


def is_lost(device: torch.device) -> bool:
    """True when a GPU lets this process do nothing more.

    After an illegal access or a failed assertion in a kernel, everything that the process asks of the GPU fails, for
    good; want of memory, or an error on the host, leaves it as it was.
    """
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
