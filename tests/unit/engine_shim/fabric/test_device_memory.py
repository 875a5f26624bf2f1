from __future__ import annotations

import torch

from engine_shim.fabric.device_memory import bytes_at


def test_bytes_lie_where_they_were_said_to() -> None:
    memory = torch.arange(8, dtype=torch.uint8)
    part = bytes_at(memory.data_ptr() + 2, 4, memory.device)
    assert (part.data_ptr(), part.dtype, part.tolist()) == (memory.data_ptr() + 2, torch.uint8, [2, 3, 4, 5])
    part.fill_(9)
    assert memory.tolist() == [0, 1, 9, 9, 9, 9, 6, 7]
