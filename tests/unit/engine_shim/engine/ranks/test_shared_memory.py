from __future__ import annotations

import os

import pytest
import torch

from engine_shim.engine.ranks import shared_memory
from engine_shim.engine.ranks.shared_memory import SharedMemory, map_memory, share_memory
from router.contract.errors import BadSettings

CPU = torch.device("cpu")


def test_memory_of_the_host_is_the_same_in_every_rank() -> None:
    shared = share_memory("test", 4096, CPU)
    handle = shared.handle_for(CPU)
    assert shared.fds == (handle,)
    mapped = map_memory(handle, 4096, CPU)
    shared.memory[7] = 9  # type: ignore[assignment, call-overload, index]
    assert mapped[7] == 9
    shared.close()
    shared.close()
    with pytest.raises(OSError):
        os.fstat(handle)
    shared.memory[8] = 5  # type: ignore[assignment, call-overload, index]
    assert mapped[8] == 5


class Driver:
    """A driver that tells whose memory it shares and on which GPU it opens some."""

    def __init__(self, region: object) -> None:
        self.region = region

    def card(self) -> bytes:
        return CARD

    def open(self, card: bytes) -> int | None:
        return OPENED.data_ptr() if card == b"card" else None


CARD = b"card"
OPENED = torch.arange(4, dtype=torch.uint8)


def test_a_rank_elsewhere_gets_a_card_and_one_beside_the_memory_a_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "CudaMapper", Driver)
    memory = torch.zeros(4, dtype=torch.uint8, device="meta")
    shared = SharedMemory(memory)
    assert shared.fds == ()
    assert shared.handle_for(memory.device) is memory
    assert map_memory(memory, 4, memory.device) is memory
    monkeypatch.setattr(shared_memory, "_region_of", lambda memory: None)
    assert shared.handle_for(torch.device("cuda", 1)) == b"card"
    mapped = map_memory(b"card", 4, CPU)
    assert isinstance(mapped, torch.Tensor) and mapped.tolist() == [0, 1, 2, 3]


def test_memory_that_cannot_be_shared_or_reached_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "CudaMapper", Driver)
    monkeypatch.setattr(shared_memory, "_region_of", lambda memory: None)
    monkeypatch.setitem(globals(), "CARD", b"")
    with pytest.raises(BadSettings, match=r"cannot be shared with cuda:1.*--devices"):
        SharedMemory(torch.zeros(4, device="meta")).handle_for(torch.device("cuda", 1))
    with pytest.raises(BadSettings, match=r"cuda:1 cannot address .*--devices"):
        map_memory(b"of another host", 4, torch.device("cuda", 1))
