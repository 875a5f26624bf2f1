"""SelfTest between two Drivers over the loopback fabric and real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from engine_shim.core.fates import Address
from engine_shim.driver import Driver
from engine_shim.driver import self_test as module
from engine_shim.driver.self_test import SelfTest, Target
from engine_shim.driver.self_test_calls import Check, Lend, Return
from engine_shim.serve.self_test import self_test_routes
from router.contract.errors import BadRequest, HandshakeFailed, NoSeats, PeerGone
from router.contract.ids import EngineId
from router.contract.seal import Seal
from tests.support.couples import Couple, engine_id_of, open_couple, port_of
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import small_layout


@dataclass
class Tried(Couple):
    """Blocks are of 4 tokens on prefill and of 8 on decode."""

    port: int = 0
    """Where decode's self test is."""

    @property
    def target(self) -> Target:
        return Target(engine_id_of(self.decode), Address("127.0.0.1", self.port))

    @property
    def prefill_id(self) -> EngineId:
        return engine_id_of(self.prefill)


@pytest.fixture
async def couple() -> AsyncIterator[Tried]:
    couple = await open_couple(FakeEngine(small_layout(4)), FakeEngine(small_layout(8)), kind=Tried)
    async with port_of(self_test_routes(self_test_of(couple.decode), Seal())) as couple.port:
        yield couple
    await couple.site.aclose()


def self_test_of(driver: Driver) -> SelfTest:
    assert driver.self_test is not None
    return driver.self_test


async def test_every_size_arrives_right_and_nothing_stays_held(couple: Tried) -> None:
    verdict = await self_test_of(couple.prefill).run(couple.target, (1, 64, 1 << 30))
    token_bytes = small_layout().token_bytes
    assert [run.wrong_bytes for run in verdict.runs] == [0, 0, 0]
    # An eighth of 64 blocks of 4 tokens is the most that prefill takes.
    assert [run.num_bytes for run in verdict.runs] == [token_bytes, 64, 32 * token_bytes]
    assert all(run.seconds > 0 and run.num_spans > 0 for run in verdict.runs)
    await couple.wait_quiet()


async def test_bytes_that_do_not_arrive_are_counted(couple: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "write_pattern", lambda *_: None)
    verdict = await self_test_of(couple.prefill).run(couple.target, (64,))
    assert verdict.runs[0].wrong_bytes > 32
    await couple.wait_quiet()


async def test_a_peer_that_lends_nothing_fails_the_test_and_leaves_nothing(
    couple: Tried, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEATS_FOR_S", 0.05)
    free, couple.d.free = couple.d.free, []
    with pytest.raises(HandshakeFailed, match="status 503"):
        await self_test_of(couple.prefill).run(couple.target, (64,))
    couple.d.free += free
    await couple.wait_quiet()


async def test_an_engine_without_seats_says_so(couple: Tried, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEATS_FOR_S", 0.05)
    free, couple.p.free = couple.p.free, []
    with pytest.raises(NoSeats):
        await self_test_of(couple.prefill).run(couple.target, (64,))
    couple.p.free += free
    await couple.wait_quiet()


async def test_lent_seats_come_back_when_their_borrower_is_gone(couple: Tried) -> None:
    await self_test_of(couple.prefill).run(couple.target, (64,))
    await couple.wait_quiet()
    lent = await self_test_of(couple.decode).lend(Lend("scratch:x", couple.prefill_id, 8))
    assert len(lent.blocks) == 2
    assert couple.decode.hand_over is not None
    couple.decode.hand_over.peers.on_death(couple.prefill_id, "left")
    assert couple.decode.hand_over.num_lent == 1
    await couple.wait_quiet()
    assert couple.decode.hand_over.num_lent == 0


async def test_strangers_and_the_greedy_are_lent_nothing(couple: Tried) -> None:
    decode = self_test_of(couple.decode)
    with pytest.raises(PeerGone):
        await decode.lend(Lend("scratch:x", "nobody@1", 8))
    await self_test_of(couple.prefill).run(couple.target, (64,))
    for wanted in (Lend("scratch:x", couple.prefill_id, 10**6), Lend("x", couple.prefill_id, 8)):
        with pytest.raises(BadRequest):
            await decode.lend(wanted)


async def test_what_is_returned_before_it_was_lent_is_never_lent(couple: Tried) -> None:
    await self_test_of(couple.prefill).run(couple.target, (64,))
    decode = self_test_of(couple.decode)
    decode.take_return(Return("scratch:x"))
    with pytest.raises(BadRequest, match="returned before"):
        await decode.lend(Lend("scratch:x", couple.prefill_id, 8))
    with pytest.raises(BadRequest, match="not lent"):
        await decode.check(Check("scratch:x", 8, 1))
    await couple.wait_quiet()
