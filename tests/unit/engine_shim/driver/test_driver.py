"""The driver with fake engines and the loopback fabric: real threads, real races, wrong bytes are counted."""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from engine_shim.core.fates import Call, FateClocks
from engine_shim.core.rendezvous import PrefillClocks
from engine_shim.core.seats import DecodeClocks
from engine_shim.driver.driver import TICK_S, Driver
from engine_shim.driver.hand_over import HandOver, KVFailure
from engine_shim.fabric.port import PeerName
from engine_shim.fabric.writer import NoticeCame
from router.contract.errors import (
    DeadlinePassed,
    Draining,
    EngineDown,
    KVWaitTimeout,
    NoSeats,
    PeerGone,
    RegistrationTimeout,
    StaleAttempt,
    TandemError,
    TransferFailed,
)
from router.contract.ids import EngineId, TransferId
from router.contract.instance import Mode, Role
from router.contract.notices import Cancelled, Left, write_notice
from router.contract.seal import Seal
from router.contract.wire import PrefillHandoff, Waits
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Clocks, Site, decode_handoff, prompt_request, quiet, small_layout, until

PROMPT = tuple(range(5, 18))


@dataclass
class Pair:
    site: Site
    prefill: Driver
    decode: Driver
    p: FakeEngine
    d: FakeEngine

    async def run(self, tid: str, prompt: tuple[int, ...], mode: Mode, max_tokens: int = 3) -> list[int]:
        """Both legs as the router sends them; the tokens of decode."""
        if mode is Mode.PULL:
            await self.prefill_leg(tid, prompt)
            return await self.decode_leg(tid, prompt, mode, max_tokens)
        legs = asyncio.gather(self.prefill_leg(tid, prompt), self.decode_leg(tid, prompt, mode, max_tokens))
        return (await legs)[1]

    async def prefill_leg(self, tid: str, prompt: tuple[int, ...]) -> dict[str, object] | None:
        stream = await self.prefill.submit(prompt_request(prompt, 1), PrefillHandoff(TransferId(tid)), 30.0)
        try:
            async for _ in stream:
                pass
        finally:
            stream.close()
        return stream.answer

    async def decode_leg(self, tid: str, prompt: tuple[int, ...], mode: Mode, max_tokens: int = 3) -> list[int]:
        handoff = decode_handoff(tid, self.prefill, mode)
        stream = await self.decode.submit(prompt_request(prompt, max_tokens), handoff, 30.0)
        try:
            return [token async for output in stream for token in output.token_ids]
        finally:
            stream.close()

    def is_quiet(self) -> bool:
        return quiet(self.prefill, self.p) and quiet(self.decode, self.d)


def hand_over(driver: Driver) -> HandOver:
    assert driver.hand_over is not None
    return driver.hand_over


def engine_id(driver: Driver) -> EngineId:
    return hand_over(driver).peers.card.engine_id


async def make_pair(p: FakeEngine, d: FakeEngine, clocks: Clocks | None = None) -> Pair:
    site = Site()
    return Pair(site, await site.open(Role.PREFILL, p, clocks), await site.open(Role.DECODE, d, clocks), p, d)


@pytest.fixture(params=[(4, 4), (4, 8), (8, 4), (3, 5)], ids=lambda sizes: f"P{sizes[0]}-D{sizes[1]}")
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    blocks = request.param
    clocks = Clocks(PrefillClocks(lease_for_s=5.0))
    pair = await make_pair(FakeEngine(small_layout(blocks[0])), FakeEngine(small_layout(blocks[1])), clocks)
    yield pair
    await pair.site.aclose()


@pytest.fixture
async def plain() -> AsyncIterator[Pair]:
    pair = await make_pair(FakeEngine(small_layout()), FakeEngine(small_layout()))
    yield pair
    await pair.site.aclose()


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 13, 40])
async def test_decode_answers_from_prefills_bytes(pair: Pair, mode: Mode, length: int) -> None:
    prompt = tuple(range(3, 3 + length))
    want = [sum(prompt) + k for k in range(3)]
    assert await pair.run(f"t-{mode}-{length}", prompt, mode) == want
    assert pair.d.mismatches == 0
    await until(pair.is_quiet)


async def test_many_at_once_in_both_modes(pair: Pair) -> None:
    rng = random.Random(4)
    prompts = [tuple(rng.randrange(3, 3000) for _ in range(rng.randint(1, 30))) for _ in range(40)]
    runs = [pair.run(f"m{k}", prompt, rng.choice((Mode.PUSH, Mode.PULL)), 2) for k, prompt in enumerate(prompts)]
    answers = await asyncio.gather(*runs)
    assert answers == [[sum(prompt), sum(prompt) + 1] for prompt in prompts]
    assert pair.d.mismatches == 0
    await until(pair.is_quiet)


async def test_the_prefill_leg_answers_with_the_whole_wire_contract(plain: Pair) -> None:
    reading = asyncio.create_task(plain.decode_leg("w1", PROMPT, Mode.PUSH))
    answer = await plain.prefill_leg("w1", PROMPT)
    assert answer is not None
    kv = plain.prefill.instance.kv
    assert kv is not None
    assert {key: answer[key] for key in answer if key != "remote_block_ids"} == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": kv.engine_id,
        "remote_host": "127.0.0.1",
        "remote_port": 1,
        "tp_size": 1,
        "pp_size": 1,
        "remote_request_id": "w1",
        "remote_num_tokens": 13,
        "transfer_id": "w1",
    }
    assert answer["remote_block_ids"] == [[0, 1, 2, 3]]
    await reading


async def test_decode_first_and_prefill_much_later_meet_all_the_same(plain: Pair) -> None:
    reading = asyncio.create_task(plain.decode_leg("late", PROMPT, Mode.PUSH))
    await until(lambda: plain.prefill.num_open_tickets == 1)
    await plain.prefill_leg("late", PROMPT)
    assert await reading == [sum(PROMPT) + k for k in range(3)]
    await until(plain.is_quiet)
    meetings = hand_over(plain.prefill).meetings
    assert meetings.first == {"registered": 1, "prefilled": 0}
    assert sum(meetings.moved.counts) == 1 and meetings.num_open == 0


async def test_a_decode_leg_knows_when_it_was_seated_and_when_its_kv_was_whole(plain: Pair) -> None:
    begun_at = time.monotonic()
    handoff = decode_handoff("timed", plain.prefill, Mode.PUSH)
    stream = await plain.decode.submit(prompt_request(PROMPT, 1), handoff, 30.0)
    await until(lambda: stream.seated_at > 0.0)
    assert stream.kv_ready_at == 0.0, "prefill has not begun"
    await plain.prefill_leg("timed", PROMPT)
    assert [output async for output in stream]
    assert begun_at < stream.seated_at < stream.kv_ready_at < time.monotonic()


async def test_a_failing_prefill_fails_decode_at_once_and_frees_its_seats(plain: Pair) -> None:
    plain.p.fail_prompts = frozenset({PROMPT[0]})
    reading = asyncio.create_task(plain.decode_leg("f1", PROMPT, Mode.PUSH))
    with pytest.raises(EngineDown):
        await plain.prefill_leg("f1", PROMPT)
    with pytest.raises(TransferFailed):
        await reading
    await until(plain.is_quiet)


async def test_prompts_of_different_length_on_the_legs_are_refused(plain: Pair) -> None:
    reading = asyncio.create_task(plain.decode_leg("x1", (*PROMPT, 3, 4, 5), Mode.PUSH))
    await plain.prefill_leg("x1", PROMPT)
    with pytest.raises(TransferFailed):
        await reading
    await until(plain.is_quiet)


async def test_a_prefill_leg_that_never_comes_ends_in_kv_wait_timeout() -> None:
    clocks = Clocks(PrefillClocks(seat_wait_for_s=9.0), DecodeClocks(kv_wait_for_s=0.3, resend_after_s=0.1))
    pair = await make_pair(FakeEngine(small_layout()), FakeEngine(small_layout()), clocks)
    with pytest.raises(KVWaitTimeout):
        await pair.decode_leg("never", PROMPT, Mode.PUSH)
    await until(pair.is_quiet)
    await pair.site.aclose()


@pytest.mark.parametrize("policy", KVFailure)
async def test_decode_without_room_says_so_when_the_leg_has_waited_for_as_long_as_it_may(policy: KVFailure) -> None:
    site = Site(kv_failure=policy)
    p, d = FakeEngine(small_layout()), FakeEngine(small_layout())
    pair = Pair(site, await site.open(Role.PREFILL, p), await site.open(Role.DECODE, d), p, d)
    room, d.free = d.free, []
    handoff = replace(decode_handoff("full", pair.prefill, Mode.PUSH), waits=Waits(registration_s=0.1))
    stream = await pair.decode.submit(prompt_request(PROMPT, 3), handoff, 30.0)
    with pytest.raises(RegistrationTimeout, match=r"within 0\.1 s"):
        await anext(aiter(stream))
    stream.close()
    d.free = room
    await until(pair.is_quiet)
    assert hand_over(pair.decode).counts()["recomputed"] == 0
    await site.aclose()


async def test_a_prefill_leg_that_computes_for_long_is_waited_for() -> None:
    clocks = Clocks(PrefillClocks(seat_wait_for_s=0.1))
    pair = await make_pair(FakeEngine(small_layout(), slow_steps=300_000), FakeEngine(small_layout()), clocks)
    running = asyncio.create_task(pair.run("slow", PROMPT, Mode.PUSH))
    await asyncio.sleep(0.8)
    assert not running.done()
    pair.p.slow_steps = 0
    assert await running == [sum(PROMPT) + k for k in range(3)]
    await until(pair.is_quiet)
    await pair.site.aclose()


async def test_prefills_lease_frees_kv_that_nobody_fetches_and_tells_the_latecomer() -> None:
    clocks = Clocks(PrefillClocks(lease_for_s=0.2))
    pair = await make_pair(FakeEngine(small_layout()), FakeEngine(small_layout()), clocks)
    await pair.prefill_leg("lone", PROMPT)
    assert pair.p.load().held_blocks == 4
    await until(lambda: quiet(pair.prefill, pair.p))
    with pytest.raises(TransferFailed, match="lease_ended"):
        await pair.decode_leg("lone", PROMPT, Mode.PUSH)
    await until(pair.is_quiet)
    await pair.site.aclose()


async def test_closing_the_stream_while_parked_frees_everything(plain: Pair) -> None:
    stream = await plain.decode.submit(prompt_request(PROMPT), decode_handoff("c1", plain.prefill, Mode.PUSH), 30.0)
    await until(lambda: plain.d.load().held_blocks == 4)
    stream.close()
    stream.close()
    await until(plain.is_quiet)
    with pytest.raises(StaleAttempt):
        await plain.prefill_leg("c1", PROMPT)


async def test_the_router_takes_finished_prefill_back(plain: Pair) -> None:
    await plain.prefill_leg("back", PROMPT)
    assert not plain.is_quiet()
    plain.prefill.cancel(TransferId("back"), "decode_unreachable")
    await until(plain.is_quiet)


async def test_a_local_attempt_can_be_taken_back_and_its_late_leg_does_not_start(plain: Pair) -> None:
    request = replace(prompt_request(PROMPT, 100_000), seq_id="req-7.1#0")
    stream = await plain.decode.submit(request, None, 30.0)
    plain.decode.cancel(TransferId("req-7.1"), "owner_gone")
    with pytest.raises(StaleAttempt):
        async for _ in stream:
            pass
    with pytest.raises(StaleAttempt):
        await plain.decode.submit(request, None, 30.0)
    await until(plain.is_quiet)


async def test_a_decode_leg_that_is_taken_back_during_its_handshake_does_not_start(plain: Pair) -> None:
    hold, greeted = asyncio.Event(), asyncio.Event()
    caller = hand_over(plain.decode).peers._caller
    call = caller.call

    async def slow(*arguments: Any) -> Any:
        greeted.set()
        await hold.wait()
        return await call(*arguments)

    caller.call = slow  # type: ignore[method-assign]
    leg = asyncio.create_task(plain.decode_leg("back2", PROMPT, Mode.PUSH))
    await greeted.wait()
    plain.decode.cancel(TransferId("back2"), "client_gone")
    hold.set()
    with pytest.raises(StaleAttempt):
        await leg
    await until(plain.is_quiet)


async def test_a_decode_leg_that_comes_again_while_it_runs_is_refused_and_leaves_no_ticket(plain: Pair) -> None:
    handoff = decode_handoff("again", plain.prefill, Mode.PUSH)
    first = await plain.decode.submit(prompt_request(PROMPT, 1_000_000), handoff, 30.0)
    await plain.prefill_leg("again", PROMPT)
    await until(lambda: plain.decode.num_open_tickets == 0)
    with pytest.raises(StaleAttempt):
        await plain.decode.submit(prompt_request(PROMPT), handoff, 30.0)
    assert plain.decode.num_open_tickets == 0
    first.close()
    await until(plain.is_quiet)


async def test_a_transfer_id_in_use_is_refused(plain: Pair) -> None:
    handoff = decode_handoff("twice", plain.prefill, Mode.PUSH)
    first = await plain.decode.submit(prompt_request(PROMPT), handoff, 30.0)
    with pytest.raises(StaleAttempt):
        await plain.decode.submit(prompt_request(PROMPT), handoff, 30.0)
    first.close()
    await until(plain.is_quiet)


async def test_a_prompt_that_can_never_fit_is_refused_and_prefill_is_let_go(plain: Pair) -> None:
    long = tuple(range(3, 3 + 65 * 4))
    with pytest.raises(NoSeats):
        await plain.decode_leg("long", long, Mode.PUSH)
    await until(plain.is_quiet)


async def test_the_deadline_ends_a_request_in_any_phase(plain: Pair) -> None:
    stream = await plain.decode.submit(prompt_request(PROMPT), decode_handoff("d1", plain.prefill, Mode.PUSH), 0.1)
    with pytest.raises(DeadlinePassed):
        async for _ in stream:
            pass
    await until(plain.is_quiet)


async def test_an_engine_that_breaks_fails_everyone_and_refuses_newcomers(plain: Pair) -> None:
    reading = asyncio.create_task(plain.decode_leg("b1", PROMPT, Mode.PUSH))
    await until(lambda: plain.d.load().held_blocks == 4)
    plain.d.broken = True
    other = await plain.decode.submit(prompt_request(PROMPT), None, 30.0)
    with pytest.raises(EngineDown):
        await reading
    with pytest.raises(EngineDown):
        async for _ in other:
            pass
    with pytest.raises(EngineDown):
        await plain.decode.submit(prompt_request(PROMPT), None, 30.0)
    assert not plain.decode.ready


async def test_draining_refuses_newcomers_and_lets_the_rest_finish(plain: Pair) -> None:
    running = asyncio.create_task(plain.run("dr", PROMPT, Mode.PUSH, 20_000))
    await until(lambda: plain.decode.load().running_seqs == 1)
    closing = asyncio.create_task(plain.decode.aclose(10.0))
    await asyncio.sleep(0)
    with pytest.raises(Draining):
        await plain.decode.submit(prompt_request(PROMPT), None, 30.0)
    assert len(await running) == 20_000
    await closing


async def test_seats_of_a_request_that_left_wait_for_a_prefill_that_cannot_be_reached(plain: Pair) -> None:
    """Neither time nor a broken connection frees what somebody might still write; an answer does."""
    prefill_id = engine_id(plain.prefill)
    stream = await plain.decode.submit(prompt_request(PROMPT), decode_handoff("q1", plain.prefill, Mode.PUSH), 30.0)
    await until(lambda: plain.d.load().held_blocks == 4)
    plain.site.calls[prefill_id] = Call.SILENT
    hand_over(plain.decode).peers.on_lost(prefill_id)
    stream.close()
    await asyncio.sleep(3 * TICK_S)
    assert hand_over(plain.decode).num_orphaned_blocks == 4
    assert plain.d.load().held_blocks == 4
    del plain.site.calls[prefill_id]
    await until(plain.is_quiet)
    assert hand_over(plain.decode).num_orphaned_blocks == 0


async def test_a_waiting_request_outlives_a_broken_connection(plain: Pair) -> None:
    prefill_id = engine_id(plain.prefill)
    reading = asyncio.create_task(plain.decode_leg("w1", PROMPT, Mode.PUSH))
    await until(lambda: plain.d.load().held_blocks == 4)
    hand_over(plain.decode).peers.on_lost(prefill_id)
    hand_over(plain.prefill).peers.on_lost(engine_id(plain.decode))
    await until(lambda: hand_over(plain.decode).peers.known() == (prefill_id,))
    await plain.prefill_leg("w1", PROMPT)
    assert await reading == [sum(PROMPT) + k for k in range(3)]
    await until(plain.is_quiet)


async def test_proof_of_prefills_death_fails_the_request_at_once_and_frees_its_seats_when_settled() -> None:
    clocks = Clocks(fates=FateClocks(settle_for_s=0.6))
    pair = await make_pair(FakeEngine(small_layout()), FakeEngine(small_layout()), clocks)
    reading = asyncio.create_task(pair.decode_leg("k1", PROMPT, Mode.PUSH))
    await until(lambda: pair.d.load().held_blocks == 4)
    pair.site.calls[engine_id(pair.prefill)] = Call.REFUSED
    hand_over(pair.decode).peers.on_lost(engine_id(pair.prefill))
    with pytest.raises(PeerGone):
        await reading
    assert pair.d.load().held_blocks == 4, "what lay in buffers may still land"
    await until(lambda: quiet(pair.decode, pair.d))
    await pair.site.aclose()


async def test_by_policy_a_prompt_whose_kv_does_not_come_is_computed_on_decode() -> None:
    clocks = Clocks(PrefillClocks(seat_wait_for_s=9.0), DecodeClocks(kv_wait_for_s=0.3))
    site = Site(kv_failure=KVFailure.RECOMPUTE)
    p, d = FakeEngine(small_layout()), FakeEngine(small_layout())
    pair = Pair(site, await site.open(Role.PREFILL, p, clocks), await site.open(Role.DECODE, d, clocks), p, d)
    assert await pair.decode_leg("never", PROMPT, Mode.PUSH) == [sum(PROMPT) + k for k in range(3)]
    assert hand_over(pair.decode).counts()["recomputed"] == 1
    assert [code for _, code in site.recomputed] == ["kv_wait_timeout"]
    await until(pair.is_quiet)
    pair.p.fail_prompts = frozenset({PROMPT[0]})
    reading = asyncio.create_task(pair.decode_leg("failed", PROMPT, Mode.PUSH))
    with pytest.raises(EngineDown):
        await pair.prefill_leg("failed", PROMPT)
    assert await reading == [sum(PROMPT) + k for k in range(3)]
    await until(pair.is_quiet)
    await site.aclose()


async def test_an_engine_that_leaves_says_so_and_nobody_waits_for_it(plain: Pair) -> None:
    reading = asyncio.create_task(plain.decode_leg("l1", PROMPT, Mode.PUSH))
    await until(lambda: plain.d.load().held_blocks == 4)
    await plain.prefill.aclose()
    with pytest.raises(PeerGone):
        await reading
    await until(lambda: quiet(plain.decode, plain.d))
    with pytest.raises(PeerGone, match="has ended"):
        await plain.decode_leg("l2", PROMPT, Mode.PUSH)


async def test_what_others_say_wrongly_is_counted_and_harms_nobody(plain: Pair) -> None:
    decode, prefill = hand_over(plain.decode), hand_over(plain.prefill)
    await plain.run("ok1", PROMPT, Mode.PUSH)
    sender = PeerName(engine_id(plain.prefill))
    forged = write_notice(Left(engine_id(plain.prefill)), Seal("another key, of 32 characters..."))
    for raw in (b"", b"TN9", forged, b"TNDM" + bytes(53)):
        decode.on_fabric_event(NoticeCame(sender, raw))
    stale = Cancelled(TransferId("t"), EngineId("prefill-0@0"), engine_id(plain.decode))
    prefill.on_fabric_event(NoticeCame(PeerName(engine_id(plain.decode)), write_notice(stale, Seal())))
    stranger = PeerName("p9@1")
    decode.on_fabric_event(NoticeCame(stranger, write_notice(Left(EngineId(stranger)), Seal())))
    counts = decode.counts()
    assert counts["notice_not_met"] == 1
    assert (counts["notice_unreadable"], counts["notice_forged"]) == (2, 2)
    assert prefill.counts()["notice_stale_epoch"] == 1
    assert await plain.run("ok2", PROMPT, Mode.PUSH) == [sum(PROMPT) + k for k in range(3)]


async def test_random_departures_leave_nothing_behind(pair: Pair) -> None:
    rng = random.Random(11)
    pair.p.slow_steps = 3

    async def one(k: int) -> None:
        prompt = tuple(rng.randrange(3, 900) for _ in range(rng.randint(1, 24)))
        mode = rng.choice((Mode.PUSH, Mode.PULL))
        run = asyncio.create_task(pair.run(f"z{k}", prompt, mode, 4))
        if rng.random() < 0.5:
            await asyncio.sleep(rng.random() * 0.02)
            run.cancel()
        try:
            assert await run == [sum(prompt) + i for i in range(4)]
        except (asyncio.CancelledError, TandemError):
            # Cancelling one leg may fail the other; the client has gone either way.
            return

    for batch in range(5):
        await asyncio.gather(*(one(batch * 40 + k) for k in range(40)))
    assert pair.d.mismatches == 0
    await until(pair.is_quiet, 15.0)
