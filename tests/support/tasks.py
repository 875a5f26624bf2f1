"""Tasks that must not end by one bad value."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest


async def outlives_errors(monkeypatch: pytest.MonkeyPatch, owner: object, verb: str, run: Coroutine) -> None:
    """The task `run` goes on although `owner.verb`, which it calls again and again, raises what nobody has foreseen."""
    calls = 0

    async def broken(*_: object) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("a value that nobody has thought of")

    monkeypatch.setattr(owner, verb, broken)
    running = asyncio.create_task(run)
    async with asyncio.timeout(10):
        while calls < 3:
            await asyncio.sleep(0.001)
    assert not running.done()
    running.cancel()
