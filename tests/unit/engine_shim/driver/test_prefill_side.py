"""Writes that go wrong: decode hears of it at once, and nothing stays held."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from engine_shim.driver import Driver
from engine_shim.fabric.loopback import LoopbackFabric
from engine_shim.fabric.port import CopyOp, CopyOrder, CopyState
from router.contract.errors import TandemError, TransferFailed
from router.contract.instance import Mode, Role
from router.contract.wire import PrefillHandoff
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Site, decode_handoff, prompt_request, quiet, small_layout, until

PROMPT = tuple(range(20, 33))


class Couple:
    """Prefill and decode, and the requests that go through both."""

    def __init__(self, prefill: Driver, decode: Driver, engines: tuple[FakeEngine, FakeEngine]) -> None:
        self.prefill, self.decode, self.engines = prefill, decode, engines

    async def ask(self, transfer_id: str) -> list[int] | str:
        """Decode's tokens, or the code of its error."""
        handoff = decode_handoff(transfer_id, self.prefill, Mode.PUSH)
        try:
            stream = await self.decode.submit(prompt_request(PROMPT), handoff, 30.0)
            hold = PrefillHandoff(handoff.transfer_id)
            async for _ in await self.prefill.submit(prompt_request(PROMPT, max_tokens=1), hold, 30.0):
                pass
            return [token async for output in stream for token in output.token_ids]
        except TandemError as error:
            return error.code

    async def wait_quiet(self) -> None:
        await until(lambda: quiet(self.prefill, self.engines[0]) and quiet(self.decode, self.engines[1]))


@pytest.fixture
async def couple() -> AsyncIterator[Couple]:
    site = Site()
    engines = FakeEngine(small_layout()), FakeEngine(small_layout())
    yield Couple(await site.open(Role.PREFILL, engines[0]), await site.open(Role.DECODE, engines[1]), engines)
    await site.aclose()


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
    answers = [await couple.ask(f"req-{number}.1") for number in range(4)]
    good = [sum(PROMPT), sum(PROMPT) + 1, sum(PROMPT) + 2]
    assert answers == [good, good, "transfer_failed", good]
    await couple.wait_quiet()
