"""Progressive push through drivers with threads: chunks that come while prefill computes, and their end at each chunk.

The prefill engine takes a step, a chunk of four tokens or a layer of the last chunk, each time its gate lets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from threading import Event, Semaphore

import pytest

from engine_shim.core.push import PushLimits
from engine_shim.driver import Driver
from engine_shim.fabric.loopback import LoopbackFabric
from engine_shim.fabric.port import CopyOrder, CopyState
from router.contract.errors import TandemError, TransferFailed
from router.contract.ids import TransferId
from router.contract.instance import Mode
from router.contract.rendezvous import JoinState
from router.contract.wire import PrefillHandoff
from tests.support.couples import Couple, hand_over_of, open_couple
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Site, decode_handoff, prompt_request, small_layout, until

PROMPT = tuple(range(40, 62))
ANSWER = [sum(PROMPT), sum(PROMPT) + 1, sum(PROMPT) + 2]
CHUNK, NUM_CHUNKS = 4, 6
FIRST_CHUNK, NUM_LAYERS = 16, 5
"""In layers, the prompt is a chunk and the layers of a second one: as many steps."""


@dataclass
class Stepped(Couple):
    """Steps of prefill are let through one by one."""

    legs: dict[str, asyncio.Task[list[int] | str]] = field(default_factory=dict)

    def begin(self, transfer_id: str) -> None:
        """Both legs are on their way."""
        handoff = decode_handoff(transfer_id, self.prefill, Mode.PUSH)
        hold = PrefillHandoff(TransferId(transfer_id))
        for side, driver, max_tokens in ((handoff, self.decode, 3), (hold, self.prefill, 1)):
            leg = self._leg(driver, max_tokens, side)
            self.legs[f"{driver.instance.role}"] = asyncio.create_task(leg)

    async def _leg(self, driver: Driver, max_tokens: int, handoff: object) -> list[int] | str:
        try:
            stream = await driver.submit(prompt_request(PROMPT, max_tokens), handoff, 30.0)  # type: ignore[arg-type]
        except TandemError as error:
            return error.code
        try:
            return [token async for output in stream for token in output.token_ids]
        except TandemError as error:
            return error.code
        finally:
            stream.close()

    async def compute(self, num_chunks: int, transfer_id: str) -> None:
        """So many chunks more are computed, and what may be pushed of them has landed."""
        hand_over = hand_over_of(self.prefill)
        await until(lambda: hand_over.prefill.desk.state_of(TransferId(transfer_id)) is not JoinState.EMPTY)
        for _ in range(num_chunks):
            before = hand_over.prefill.pushes.writes.total()
            self.let_through(1)
            await until(lambda at=before: hand_over.prefill.pushes.writes.total() > at)  # type: ignore[misc]
            await until(lambda: hand_over.copies.num_live == 0)

    def let_through(self, steps: int) -> None:
        assert self.p.gate is not None
        for _ in range(steps):
            self.p.gate.release()

    async def answers(self) -> tuple[list[int] | str, list[int] | str]:
        """Of prefill and decode."""
        self.let_through(200)
        return await self.legs["prefill"], await self.legs["decode"]


@pytest.fixture(params=[(4, 4), (4, 8), (8, 4)], ids=lambda sizes: f"P{sizes[0]}-D{sizes[1]}")
async def couple(request: pytest.FixtureRequest) -> AsyncIterator[Stepped]:
    blocks, in_layers = request.param[:2], len(request.param) > 2
    num_layers = NUM_LAYERS if in_layers else 2
    site = Site(limits=PushLimits(num_layers=num_layers * in_layers), layers_from_tokens=int(in_layers))
    part_tokens = FIRST_CHUNK if in_layers else max(CHUNK, blocks[0])
    p = FakeEngine(small_layout(blocks[0], num_layers=num_layers), part_tokens=part_tokens, gate=Semaphore(0))
    d = FakeEngine(small_layout(blocks[1], num_layers=num_layers))
    couple = await open_couple(p, d, site=site, kind=Stepped)
    yield couple
    p.gate = None
    await couple.site.aclose()


EQUAL = pytest.mark.parametrize("couple", [(4, 4), (4, 4, "layers")], indirect=True, ids=["P4-D4", "layers"])
LAYERS = pytest.mark.parametrize("couple", [(4, 4, "layers"), (4, 8, "layers")], indirect=True, ids=["P4-D4", "P4-D8"])


async def test_when_prefill_is_done_only_the_last_chunk_is_still_to_go(couple: Stepped) -> None:
    couple.begin("a")
    pushes = hand_over_of(couple.prefill).prefill.pushes
    num_steps = -(-len(PROMPT) // couple.p.part_tokens)
    await couple.compute(num_steps - 1, "a")
    assert pushes.writes == {"early": num_steps - 1, "last": 0}
    assert hand_over_of(couple.prefill).prefill.desk.state_of(TransferId("a")) is JoinState.MATCHED
    assert (await couple.answers()) == ([sum(PROMPT)], ANSWER)
    assert pushes.writes == {"early": num_steps - 1, "last": 1} and pushes.num_pushes == 1
    layout = couple.p.layout
    wanted = len(PROMPT) - 1 - (num_steps - 1) * couple.p.part_tokens
    assert pushes.num_bytes["last"] <= layout.blocks_for(wanted) * layout.block_bytes
    assert couple.d.mismatches == 0
    await couple.wait_quiet()


@LAYERS
async def test_when_prefill_is_done_only_the_last_layer_of_the_last_chunk_is_still_to_go(couple: Stepped) -> None:
    couple.begin("a")
    pushes = hand_over_of(couple.prefill).prefill.pushes
    await couple.compute(NUM_CHUNKS - 1, "a")
    assert pushes.writes == {"early": NUM_CHUNKS - 1, "last": 0}
    assert (await couple.answers()) == ([sum(PROMPT)], ANSWER)
    p, d, wanted = couple.p.layout, couple.d.layout, len(PROMPT) - 1 - FIRST_CHUNK
    # Blocks of one size go whole.
    copied = p.blocks_for(wanted) * p.block_tokens if p.block_tokens == d.block_tokens else wanted
    assert pushes.num_bytes["last"] == copied * p.token_bytes // NUM_LAYERS
    assert couple.d.mismatches == 0
    await couple.wait_quiet()


async def _left_by_its_client(couple: Stepped) -> None:
    couple.legs["decode"].cancel()
    couple.legs["prefill"].cancel()


async def _taken_back(couple: Stepped) -> None:
    for driver in (couple.decode, couple.prefill):
        driver.cancel(TransferId("a.1"), "taken_back")


async def _decode_alone_leaves(couple: Stepped) -> None:
    couple.legs["decode"].cancel()


async def _prefill_alone_fails(couple: Stepped) -> None:
    couple.legs["prefill"].cancel()


ENDS = (_left_by_its_client, _taken_back, _decode_alone_leaves, _prefill_alone_fails)


@pytest.mark.parametrize(
    ("couple", "num_chunks"),
    [*(((4, 4), step) for step in (0, 1, 3, NUM_CHUNKS - 1)), *(((4, 4, "layers"), step) for step in (2, 4))],
    indirect=["couple"],
    ids=[*(f"P4-D4-{step}" for step in (0, 1, 3, NUM_CHUNKS - 1)), "layers-2", "layers-4"],
)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__.strip("_"))
async def test_an_attempt_that_ends_at_a_chunk_leaves_nothing_and_the_next_one_is_right(
    couple: Stepped, end: Callable[[Stepped], object], num_chunks: int
) -> None:
    couple.begin("a.1")
    await couple.compute(num_chunks, "a.1")
    posted = hand_over_of(couple.prefill).prefill.pushes.writes.total()
    await end(couple)  # type: ignore[misc]
    desk = hand_over_of(couple.prefill).prefill.desk
    await until(lambda: desk.state_of(TransferId("a.1")) is JoinState.VOID)
    couple.let_through(200)
    await couple.wait_quiet()
    assert hand_over_of(couple.prefill).prefill.pushes.writes.total() == posted, "a stale attempt goes on landing"
    couple.begin("a.2")
    assert (await couple.answers())[1] == ANSWER
    assert couple.d.mismatches == 0
    await couple.wait_quiet()


@EQUAL
@pytest.mark.parametrize("which", range(NUM_CHUNKS))
async def test_a_chunk_that_fails_fails_its_attempt_and_no_other(
    couple: Stepped, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    post, posted = LoopbackFabric.post, []

    def one_fails(fabric: LoopbackFabric, order: CopyOrder) -> CopyState:
        posted.append(order)
        if len(posted) == which + 1:
            raise TransferFailed("The descriptors were refused.")
        return post(fabric, order)

    monkeypatch.setattr(LoopbackFabric, "post", one_fails)
    couple.begin("a.1")
    await couple.compute(which, "a.1")
    assert (await couple.answers())[1] == "transfer_failed"
    await couple.wait_quiet()
    couple.begin("a.2")
    assert (await couple.answers())[1] == ANSWER
    assert couple.d.mismatches == 0
    await couple.wait_quiet()


@EQUAL
async def test_decode_is_ready_while_its_engine_is_in_the_middle_of_a_step(couple: Stepped) -> None:
    """KVReady is a fact of the event loop: it waits for no step of either engine."""
    couple.d.gate = Semaphore(1)
    couple.begin("a")
    await couple.compute(NUM_CHUNKS - 1, "a")
    neighbour = asyncio.create_task(couple._leg(couple.decode, 3, None))
    await until(lambda: couple.decode.engine_load().parked_seqs == 1 and len(couple.d.sequences) == 2)
    ready = []
    kv_ready = couple.decode._on_kv_ready
    desk = hand_over_of(couple.decode).decode
    desk._shell = type(desk._shell)(
        *(
            (lambda transfer_id: (ready.append(transfer_id), kv_ready(transfer_id)))
            if name == "kv_ready"
            else getattr(desk._shell, name)
            for name in type(desk._shell).__dataclass_fields__
        )
    )
    couple.let_through(1)
    await until(lambda: ready == ["a"])
    assert not neighbour.done(), "decode's step has not ended"
    couple.d.gate.release(100)
    assert (await couple.answers())[1] == ANSWER
    await neighbour
    await couple.wait_quiet()


@EQUAL
@pytest.mark.parametrize("verb", ["post", "advance", "notify", "add_peer"])
async def test_no_engine_step_waits_for_the_fabric(couple: Stepped, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Posting, polling, notices and handshakes stand still; sequences on both sides run to their end all the same."""
    original, held, reached = getattr(LoopbackFabric, verb), Event(), Event()

    def stuck(fabric: LoopbackFabric, *arguments: object) -> object:
        reached.set()
        held.wait(10.0)
        return original(fabric, *arguments)

    couple.let_through(200)
    monkeypatch.setattr(LoopbackFabric, verb, stuck)
    couple.begin("a")
    await until(reached.is_set)
    answers = [await couple._leg(driver, 3, None) for driver in (couple.prefill, couple.decode)]
    assert answers == [ANSWER, ANSWER] and not held.is_set()
    held.set()
    assert (await couple.answers())[1] == ANSWER
    await couple.wait_quiet()
