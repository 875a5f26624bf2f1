"""KV that comes back from decode, between two Drivers over the loopback fabric and real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from threading import Semaphore

import httpx
import pytest

from engine_shim.core.fates import Call
from engine_shim.core.rendezvous import PrefillClocks
from engine_shim.driver.hand_over import KVFailure
from engine_shim.driver.recall import Recall, RecallRules, recall_id
from engine_shim.driver.recall_calls import Kept, Wanted
from engine_shim.driver.stream import Stream
from engine_shim.serve.side_channel import side_channel
from router.contract.errors import StaleAttempt
from router.contract.ids import EngineId, TransferId
from router.contract.instance import Role
from router.contract.seal import Seal
from router.contract.wire import Keeper, PrefillHandoff
from tests.support.couples import Couple, engine_id_of, open_couple, port_of
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Clocks, Site, prompt_request, quiet, small_layout, until

PROMPT = tuple(range(50, 90))
RULES = RecallRules(least_tokens=8, wait_for_s=5.0)
LEASE_S = 0.2


@dataclass
class Turns(Couple):
    """Prefill has nothing of any prompt, decode keeps 32 tokens; blocks are of 4 and of 8 tokens."""

    port: int = 0
    """Where decode's side channel is."""

    @property
    def keeper(self) -> Keeper:
        return Keeper(engine_id_of(self.decode), "127.0.0.1", self.port)

    @property
    def recall(self) -> Recall:
        assert self.prefill.recall is not None
        return self.prefill.recall

    def ask(self, transfer_id: str = "req-1.1", keeper: Keeper | None = None) -> asyncio.Task[Stream]:
        """A prefill leg that names a keeper."""
        handoff = PrefillHandoff(TransferId(transfer_id), keeper or self.keeper)
        return asyncio.create_task(self.prefill.submit(prompt_request(PROMPT, 1), handoff, 30.0))

    async def finish(self, asking: asyncio.Task[Stream]) -> None:
        """Prefill has computed the prompt, whatever became of the recall; nobody comes for it, and nothing is held."""
        async for _ in (stream := await asking):
            pass
        assert stream.answer is not None
        self.prefill.cancel(TransferId(str(stream.answer["transfer_id"])), "done")
        await self.wait_quiet()


@contextmanager
def stalled(engine: FakeEngine) -> Iterator[None]:
    """The engine takes no step meanwhile."""
    engine.gate = gate = Semaphore(0)
    try:
        yield
    finally:
        engine.gate = None
        gate.release(9)


@pytest.fixture
async def couple(request: pytest.FixtureRequest) -> AsyncIterator[Turns]:
    wish = getattr(request, "param", RULES)
    site = Site(recall=RULES, kv_failure=wish) if isinstance(wish, KVFailure) else Site(recall=wish)
    p, d = FakeEngine(small_layout(4)), FakeEngine(small_layout(8), cached_tokens=32)
    couple = await open_couple(p, d, Clocks(prefill=PrefillClocks(lease_for_s=LEASE_S)), site, Turns)
    async with port_of(side_channel(couple.decode, Seal())) as couple.port:
        yield couple
    await site.aclose()


async def test_what_decode_keeps_comes_back_before_prefill_computes(couple: Turns) -> None:
    await couple.finish(couple.ask())
    assert couple.recall.results == {"taken": 1} and couple.recall.num_tokens == 32
    assert couple.p.mismatches == 0
    assert couple.site.walked[0].transfer_id == recall_id(TransferId("req-1.1"))
    assert couple.decode.recall is not None and not couple.decode.recall.results


async def test_only_what_is_not_here_comes(couple: Turns) -> None:
    couple.p.cached_tokens = 16
    await couple.finish(couple.ask())
    assert couple.recall.num_tokens == 16


@pytest.mark.parametrize(("here", "there"), [(0, 0), (28, 32), (36, 0), (32, 32)])
async def test_what_is_not_worth_its_way_is_computed(couple: Turns, here: int, there: int) -> None:
    couple.p.cached_tokens, couple.d.cached_tokens = here, there
    await couple.finish(couple.ask())
    assert couple.recall.results == {"nothing": 1} and couple.recall.num_tokens == 0


async def test_a_keeper_that_is_gone_costs_nothing_but_the_computing(couple: Turns) -> None:
    await couple.finish(couple.ask(keeper=replace(couple.keeper, port=1)))
    couple.site.calls["another@1"] = Call.ANOTHER
    await couple.finish(couple.ask("req-2.1", replace(couple.keeper, engine_id=EngineId("another@1"))))
    assert couple.recall.results == {"failed": 2}


@pytest.mark.parametrize(("host", "asked"), [("fd00::1", ["fd00::1"]), ("k0", ["k0"]), ("no\0host", [])])
async def test_a_keeper_is_asked_at_its_address_whatever_that_is(couple: Turns, host: str, asked: list[str]) -> None:
    hosts: list[str] = []

    def refuse(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return httpx.Response(404)

    couple.recall._client = httpx.AsyncClient(transport=httpx.MockTransport(refuse))
    await couple.finish(couple.ask(keeper=replace(couple.keeper, host=host)))
    assert (hosts, couple.recall.results) == (asked, {"failed": 1})


@pytest.mark.parametrize("couple", [RecallRules(8, 0.2)], indirect=True)
async def test_a_keeper_that_does_not_get_on_is_waited_for_no_longer_than_that(couple: Turns) -> None:
    with stalled(couple.d):
        asking = couple.ask()
        await until(lambda: couple.recall.results["failed"] == 1)
    await couple.finish(asking)


@pytest.mark.parametrize("couple", [RecallRules(8, 60.0)], indirect=True)
async def test_a_client_that_leaves_during_the_recall_leaves_nothing_on_either_side(couple: Turns) -> None:
    with stalled(couple.d):
        asking = couple.ask()
        await until(lambda: bool(couple.p.pins))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    await couple.wait_quiet()
    assert not couple.recall.results


async def test_an_attempt_that_was_taken_back_meanwhile_does_not_start(couple: Turns) -> None:
    with stalled(couple.d):
        asking = couple.ask()
        await until(lambda: bool(couple.p.pins))
        couple.prefill.cancel(TransferId("req-1.1"), "taken_back")
    with pytest.raises(StaleAttempt):
        await asking
    await couple.wait_quiet()


@asynccontextmanager
async def keeper_dying(couple: Turns) -> AsyncIterator[None]:
    """The prompt has been served, whose keeper stands still and has died while it was asked."""
    with stalled(couple.d):
        asking = couple.ask()
        await until(lambda: bool(couple.p.pins))
        assert couple.prefill.hand_over is not None
        couple.prefill.hand_over.peers.on_death(couple.keeper.engine_id, "left")
        async for _ in await asking:
            pass
        yield


async def test_a_keeper_that_dies_in_the_middle_does_not_hold_prefill_up(couple: Turns) -> None:
    async with keeper_dying(couple):
        assert couple.recall.results == {"failed": 1}


@pytest.mark.parametrize("couple", [KVFailure.RECOMPUTE], indirect=True)
async def test_what_prefill_computes_itself_after_all_has_not_come_back(couple: Turns) -> None:
    async with keeper_dying(couple):
        assert [str(transfer_id) for transfer_id, _ in couple.site.recomputed] == ["req-1.1.recall"]
        assert couple.recall.results == {"nothing": 1} and couple.recall.num_tokens == 0


async def test_blocks_that_nobody_comes_for_are_free_after_the_lease(couple: Turns) -> None:
    assert couple.decode.recall is not None
    assert await couple.decode.recall.give(Wanted("req-9.1.recall", 0, PROMPT)) == Kept(32)
    await until(lambda: couple.decode.load().held_blocks > 0)
    await couple.wait_quiet()


async def test_without_rules_nobody_asks_and_nobody_gives(couple: Turns) -> None:
    site = Site()
    driver = await site.open(Role.PREFILL, engine := FakeEngine(small_layout(4)))
    assert driver.recall is None
    async for _ in await driver.submit(
        prompt_request(PROMPT, 1), PrefillHandoff(TransferId("req-1.1"), couple.keeper), 9.0
    ):
        pass
    driver.cancel(TransferId("req-1.1"), "done")
    await until(lambda: quiet(driver, engine))
    await site.aclose()
