"""What an engine of ranks leaves behind; ranks themselves are in `real/e2e/test_experts.py`."""

from __future__ import annotations

import gc
import os

import pytest

from engine_shim.engine.ranks import opening
from engine_shim.engine.ranks.opening import open_ranked_engine
from engine_shim.engine.ranks.processes import RankProcesses
from engine_shim.engine.reference.settings import ReferenceSettings
from router.contract.errors import ModelUnusable

SETTINGS = ReferenceSettings("tiny-moe", num_ranks=2, kv_bytes=1_000_000)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the processes, of which there are none."""
    said: list[str] = []
    monkeypatch.setattr(RankProcesses, "start", lambda _: said.append("start"))
    monkeypatch.setattr(RankProcesses, "close", lambda _: said.append("close"))
    return said


def num_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_ranks_are_ended_when_the_engine_cannot_be_made(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: object) -> None:
        raise ModelUnusable("There is no tokenizer.")

    monkeypatch.setattr(opening.Tokenizer, "load", refuse)
    with pytest.raises(ModelUnusable):
        open_ranked_engine(SETTINGS)
    assert said == ["start", "close"]


def test_an_engine_that_is_closed_holds_no_memory(said: list[str]) -> None:
    open_ranked_engine(SETTINGS).close()
    gc.collect()
    before = num_fds()
    for _ in range(3):
        engine = open_ranked_engine(SETTINGS)
        assert said[-1] == "start"
        engine.close()
        assert said[-1] == "close"
        del engine
        gc.collect()
    assert num_fds() <= before
