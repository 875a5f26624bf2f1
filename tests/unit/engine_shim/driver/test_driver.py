"""The driver with fake engines and the loopback fabric: real threads, real races, wrong bytes are counted."""

import asyncio
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from engine_shim.core.rendezvous import PrefillClocks
from router.contract.errors import DeadlinePassed, Draining, NoSeats, StaleAttempt, TandemError, TransferFailed
from router.contract.ids import TransferId
from router.contract.instance import Mode
from tests.support.couples import Couple, hand_over_of, open_couple
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Clocks, decode_handoff, prompt_request, small_layout, until

PROMPT = tuple(range(5, 18))


@pytest.mark.parametrize("mode", [Mode.PUSH, Mode.PULL])
@pytest.mark.parametrize("length", [1, 2, 4, 5, 13, 40])
async def test_decode_answers_from_prefills_bytes(pair: Couple, mode: Mode, length: int) -> None:
    prompt = tuple(range(3, 3 + length))
    want = [sum(prompt) + k for k in range(3)]
    assert await pair.run(f"t-{mode}-{length}", prompt, mode) == want
    assert pair.d.mismatches == 0
    await pair.wait_quiet()


async def test_many_at_once_in_both_modes(pair: Couple) -> None:
    rng = random.Random(4)
    prompts = [tuple(rng.randrange(3, 3000) for _ in range(rng.randint(1, 30))) for _ in range(40)]
    runs = [pair.run(f"m{k}", prompt, rng.choice((Mode.PUSH, Mode.PULL)), 2) for k, prompt in enumerate(prompts)]
    answers = await asyncio.gather(*runs)
    assert answers == [[sum(prompt), sum(prompt) + 1] for prompt in prompts]
    assert pair.d.mismatches == 0
    await pair.wait_quiet()


async def test_the_prefill_leg_answers_with_the_whole_wire_contract(plain: Couple) -> None:
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


async def test_decode_first_and_prefill_much_later_meet_all_the_same(plain: Couple) -> None:
    reading = asyncio.create_task(plain.decode_leg("late", PROMPT, Mode.PUSH))
    await until(lambda: plain.prefill.num_open_tickets == 1)
    await plain.prefill_leg("late", PROMPT)
    assert await reading == [sum(PROMPT) + k for k in range(3)]
    await plain.wait_quiet()
    meetings = hand_over_of(plain.prefill).meetings
    assert meetings.first == {"registered": 1, "prefilled": 0}
    assert sum(meetings.moved.counts) == 1 and meetings.num_open == 0


async def test_a_decode_leg_knows_when_it_was_seated_and_when_its_kv_was_whole(plain: Couple) -> None:
    begun_at = time.monotonic()
    handoff = decode_handoff("timed", plain.prefill, Mode.PUSH)
    stream = await plain.decode.submit(prompt_request(PROMPT, 1), handoff, 30.0)
    await until(lambda: stream.seated_at > 0.0)
    assert stream.kv_ready_at == 0.0, "prefill has not begun"
    await plain.prefill_leg("timed", PROMPT)
    assert [output async for output in stream]
    assert begun_at < stream.seated_at < stream.kv_ready_at < time.monotonic()


async def test_prompts_of_different_length_on_the_legs_are_refused(plain: Couple) -> None:
    reading = asyncio.create_task(plain.decode_leg("x1", (*PROMPT, 3, 4, 5), Mode.PUSH))
    await plain.prefill_leg("x1", PROMPT)
    with pytest.raises(TransferFailed):
        await reading
    await plain.wait_quiet()


async def test_a_prefill_leg_that_computes_for_long_is_waited_for() -> None:
    clocks = Clocks(PrefillClocks(seat_wait_for_s=0.1))
    pair = await open_couple(FakeEngine(small_layout(), slow_steps=300_000), FakeEngine(small_layout()), clocks)
    running = asyncio.create_task(pair.run("slow", PROMPT, Mode.PUSH))
    await asyncio.sleep(0.8)
    assert not running.done()
    pair.p.slow_steps = 0
    assert await running == [sum(PROMPT) + k for k in range(3)]
    await pair.wait_quiet()
    await pair.site.aclose()


async def test_closing_the_stream_while_parked_frees_everything(plain: Couple) -> None:
    stream = await plain.decode.submit(prompt_request(PROMPT), decode_handoff("c1", plain.prefill, Mode.PUSH), 30.0)
    await until(lambda: plain.d.load().held_blocks == 4)
    stream.close()
    stream.close()
    await plain.wait_quiet()
    with pytest.raises(StaleAttempt):
        await plain.prefill_leg("c1", PROMPT)


async def test_the_router_takes_finished_prefill_back(plain: Couple) -> None:
    await plain.prefill_leg("back", PROMPT)
    assert not plain.is_quiet()
    plain.prefill.cancel(TransferId("back"), "decode_unreachable")
    await plain.wait_quiet()


async def test_a_local_attempt_can_be_taken_back_and_its_late_leg_does_not_start(plain: Couple) -> None:
    request = replace(prompt_request(PROMPT, 100_000), seq_id="req-7.1#0")
    stream = await plain.decode.submit(request, None, 30.0)
    plain.decode.cancel(TransferId("req-7.1"), "owner_gone")
    with pytest.raises(StaleAttempt):
        async for _ in stream:
            pass
    with pytest.raises(StaleAttempt):
        await plain.decode.submit(request, None, 30.0)
    await plain.wait_quiet()


async def test_a_decode_leg_that_is_taken_back_during_its_handshake_does_not_start(plain: Couple) -> None:
    hold, greeted = asyncio.Event(), asyncio.Event()
    caller = hand_over_of(plain.decode).peers._caller
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
    await plain.wait_quiet()


async def test_a_decode_leg_that_comes_again_while_it_runs_is_refused_and_leaves_no_ticket(plain: Couple) -> None:
    handoff = decode_handoff("again", plain.prefill, Mode.PUSH)
    first = await plain.decode.submit(prompt_request(PROMPT, 1_000_000), handoff, 30.0)
    await plain.prefill_leg("again", PROMPT)
    await until(lambda: plain.decode.num_open_tickets == 0)
    with pytest.raises(StaleAttempt):
        await plain.decode.submit(prompt_request(PROMPT), handoff, 30.0)
    assert plain.decode.num_open_tickets == 0
    first.close()
    await plain.wait_quiet()


async def test_a_transfer_id_in_use_is_refused(plain: Couple) -> None:
    handoff = decode_handoff("twice", plain.prefill, Mode.PUSH)
    first = await plain.decode.submit(prompt_request(PROMPT), handoff, 30.0)
    with pytest.raises(StaleAttempt):
        await plain.decode.submit(prompt_request(PROMPT), handoff, 30.0)
    first.close()
    await plain.wait_quiet()


async def test_a_prompt_that_can_never_fit_is_refused_and_prefill_is_let_go(plain: Couple) -> None:
    long = tuple(range(3, 3 + 65 * 4))
    with pytest.raises(NoSeats):
        await plain.decode_leg("long", long, Mode.PUSH)
    await plain.wait_quiet()


async def test_the_deadline_ends_a_request_in_any_phase(plain: Couple) -> None:
    stream = await plain.decode.submit(prompt_request(PROMPT), decode_handoff("d1", plain.prefill, Mode.PUSH), 0.1)
    with pytest.raises(DeadlinePassed):
        async for _ in stream:
            pass
    await plain.wait_quiet()


async def test_draining_refuses_newcomers_and_lets_the_rest_finish(plain: Couple) -> None:
    running = asyncio.create_task(plain.run("dr", PROMPT, Mode.PUSH, 20_000))
    await until(lambda: plain.decode.load().running_seqs == 1)
    closing = asyncio.create_task(plain.decode.aclose(10.0))
    await asyncio.sleep(0)
    with pytest.raises(Draining):
        await plain.decode.submit(prompt_request(PROMPT), None, 30.0)
    assert len(await running) == 20_000
    await closing


async def test_random_departures_leave_nothing_behind(pair: Couple) -> None:
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
    await pair.wait_quiet(15.0)
