"""Writes that go wrong: decode hears of it at once, and nothing stays held."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine_shim.fabric.loopback import LoopbackFabric
from engine_shim.fabric.port import CopyOp, CopyOrder, CopyState
from router.contract.errors import TandemError, TransferFailed
from router.contract.instance import Mode
from tests.support.couples import Couple, open_couple

PROMPT = tuple(range(20, 33))


async def ask(couple: Couple, transfer_id: str) -> list[int] | str:
    """Decode's tokens, or the code of its error."""
    try:
        return await couple.run(transfer_id, PROMPT, Mode.PUSH)
    except TandemError as error:
        return error.code


@pytest.fixture
async def couple() -> AsyncIterator[Couple]:
    couple = await open_couple()
    yield couple
    await couple.site.aclose()


async def test_b3_a_write_that_cannot_be_posted_fails_its_request_at_once_and_no_other(
    couple: Couple, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, writes = LoopbackFabric.post, []

    def third_fails(fabric: LoopbackFabric, order: CopyOrder) -> CopyState:
        if order.op is CopyOp.WRITE:
            writes.append(order)
            if len(writes) == 3:
                raise TransferFailed("The descriptors were refused.")
        return post(fabric, order)

    monkeypatch.setattr(LoopbackFabric, "post", third_fails)
    answers = [await ask(couple, f"req-{number}.1") for number in range(4)]
    good = [sum(PROMPT), sum(PROMPT) + 1, sum(PROMPT) + 2]
    assert answers == [good, good, "transfer_failed", good]
    await couple.wait_quiet()
