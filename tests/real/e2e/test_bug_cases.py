"""Troubles that other routers had (`bug_cases.md`), on a real pair of engines with a tiny checkpoint.

No lease of the shims ends within a test, so whatever comes free has been released by somebody.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import httpx
import pytest
import pytest_asyncio

from tests.support.chaos_load import Case, ChaosLoad, Verdict, cases
from tests.support.chaos_process import Victim
from tests.support.chaos_site import ChaosSite
from tests.support.wire import Wire, post

pytestmark = [
    pytest.mark.needs("nixl", "redis"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(120),
]
ENGINES = {
    "prefill-0": "--role prefill --no-prefix-cache",
    "decode-0": "--role decode --no-prefix-cache --block-tokens 8",
}
NO_LEASE = "--lease-for-s 300 --seat-wait-for-s 300 --kv-wait-for-s 300 --request-for-s 300 --fleet-lease-for-s 60"
PATH = "/v1/completions"
B4_ROUNDS = int(os.environ.get("TANDEM_TEST_B4_ROUNDS", "1"))
"""Each waits for a prefill engine that starts again; the case asks for 50, which takes a quarter of an hour."""
SOON_S = 3.0
"""What is to be released must be so by then; far below every lease."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChaosSite]:
    async with ChaosSite(tmp_path_factory.mktemp("pair"), ENGINES, 1, NO_LEASE) as made:
        yield made


@pytest.fixture(scope="module")
def made_cases() -> list[Case]:
    return cases(8)


@pytest_asyncio.fixture(loop_scope="module")
async def load(site: ChaosSite, made_cases: list[Case]) -> AsyncIterator[ChaosLoad]:
    """Requests with a known answer; nothing is held anywhere after the test, and no engine has logged an error."""
    made = ChaosLoad(site.routers, made_cases, seed=1)
    yield made
    made.close()
    held, _ = await site.wait_quiet(10.0)
    assert held == {}
    for victim in site.engines:
        free = (await site.metrics(victim))["free_blocks"]
        assert free == (await site.metrics(victim))["total_blocks"], victim.name
        assert [line for line in victim.log_path.read_text().splitlines() if line.startswith("E ")] == []


def ask(num_prompt_tokens: int, max_tokens: int = 8, **fields: object) -> bytes:
    """A greedy request."""
    body = {"model": "tiny", "prompt": [7] * num_prompt_tokens, "max_tokens": max_tokens, "temperature": 0}
    return post(PATH, body | {"ignore_eos": True} | fields)


async def wire_to(victim: Victim) -> Wire:
    return await Wire.to(int(victim.url.rpartition(":")[2]))


async def seen(site: ChaosSite, victim: Victim, metric: str, wanted: Callable[[float], bool], within_s: float) -> None:
    """Waits until the metric is as wanted."""
    value = -1.0
    try:
        async with asyncio.timeout(within_s):
            while not wanted(value := (await site.metrics(victim))[metric]):
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{victim.name} {metric} is {value} after {within_s} s") from None


async def leave_while(site: ChaosSite, victim: Victim, metric: str) -> None:
    """A request is left while the metric is above zero; one that is answered before we look is asked again."""
    for _ in range(50):
        wire = await wire_to(site.routers[0])
        wire.send(ask(430))
        answer = asyncio.ensure_future(wire.answer())
        while not answer.done():
            if (await site.metrics(victim))[metric] > 0:
                answer.cancel()
                wire.cut()
                return
            await asyncio.sleep(0.01)
        assert (await answer).status == 200
        await wire.close()
    raise AssertionError(f"{metric} of {victim.name} was never seen above zero")


async def served(load: ChaosLoad) -> None:
    """A normal request is answered right."""
    result = await load.send(leaving=0.0)
    assert (result.verdict, result.why) == (Verdict.SERVED, "")


async def test_b1_seats_of_an_aborted_request_stay_out_of_use_while_they_may_be_written(
    site: ChaosSite, load: ChaosLoad
) -> None:
    (prefill,), (decode,), (router,) = site.of_role("prefill"), site.of_role("decode"), site.routers
    await served(load)  # so that the two have met
    for _ in range(5):
        prefill.freeze()
        try:
            wire = await wire_to(router)
            wire.send(ask(430))
            await seen(site, decode, "parked_seqs", lambda parked: parked > 0, 10.0)
            wire.cut()
            await seen(site, decode, "quarantined_blocks", lambda blocks: blocks > 0, SOON_S)
            await asyncio.sleep(0.3)
            facts = await site.metrics(decode)
            assert facts["quarantined_blocks"] == facts["held_blocks"] == 54
            assert facts["free_blocks"] == facts["total_blocks"] - 54
        finally:
            prefill.thaw()
        await seen(site, decode, "quarantined_blocks", lambda blocks: blocks == 0, 10.0)
        await served(load)


async def test_b5_prefill_is_let_go_when_the_client_leaves_before_decode_has_begun(
    site: ChaosSite, load: ChaosLoad
) -> None:
    (prefill,), (decode,), (router,) = site.of_role("prefill"), site.of_role("decode"), site.routers
    for stream in (True, False):
        decode.freeze()
        try:
            wire = await wire_to(router)
            wire.send(ask(100, stream=stream))
            await seen(site, prefill, "held_blocks", lambda blocks: blocks > 0, 10.0)
            wire.cut()
            await seen(site, prefill, "held_blocks", lambda blocks: blocks == 0, SOON_S)
        finally:
            decode.thaw()
        await served(load)


async def test_b6_leaving_in_the_middle_of_a_write_keeps_its_blocks_until_it_has_ended(
    site: ChaosSite, load: ChaosLoad
) -> None:
    (prefill,), (decode,), (router,) = site.of_role("prefill"), site.of_role("decode"), site.routers
    in_the_middle = 0
    for _ in range(12):
        wire = await wire_to(router)
        wire.send(ask(400))
        await seen(site, decode, "parked_seqs", lambda parked: parked > 0, 10.0)
        decode.freeze()
        try:
            # Seats may have been written before their owner stood still; most are not.
            with suppress(AssertionError):
                await seen(site, prefill, "live_transfers", lambda live: live > 0, 1.0)
            moving = (await site.metrics(prefill))["live_transfers"]
            wire.cut()
            if moving:
                in_the_middle += 1
                # The router says at once that nobody will come; a posted WRITE goes on reading the blocks all the same.
                await asyncio.sleep(0.1)
                facts = await site.metrics(prefill)
                assert facts["live_transfers"] == 0 or facts["held_blocks"] > 0
        finally:
            decode.thaw()
        await served(load)
    assert in_the_middle > 0


async def test_b7_what_decode_refuses_is_the_answer_and_prefill_is_let_go(site: ChaosSite, load: ChaosLoad) -> None:
    (prefill,), (router,) = site.of_role("prefill"), site.routers
    wire = await wire_to(router)
    wire.send(ask(400, max_tokens=200))
    answer = await wire.answer()
    assert answer.status == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    await seen(site, prefill, "held_blocks", lambda blocks: blocks == 0, SOON_S)
    await seen(site, prefill, "open_tickets", lambda tickets: tickets == 0, SOON_S)
    await seen(site, router, "open_tickets", lambda tickets: tickets == 0, SOON_S)


async def test_b14_forty_requests_under_one_id_are_forty_answers(site: ChaosSite, load: ChaosLoad) -> None:
    (router,) = site.routers
    body = {"model": "tiny", "prompt": [7] * 20, "max_tokens": 4, "temperature": 0, "request_id": "bench-0"}
    async with httpx.AsyncClient(base_url=router.url, headers={"X-Request-Id": "bench-0"}, timeout=30) as client:
        answers = await asyncio.gather(*(client.post(PATH, json=body) for _ in range(20)))
        answers += [await client.post(PATH, json=body) for _ in range(20)]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["x-request-id"] for answer in answers} == {"bench-0"}
    assert len({answer.json()["choices"][0]["text"] for answer in answers}) == 1


async def test_b16_the_request_after_one_that_was_cancelled_before_prefills_end_is_served(
    site: ChaosSite, load: ChaosLoad
) -> None:
    (prefill,), (decode,) = site.of_role("prefill"), site.of_role("decode")
    for number in range(40):
        await leave_while(site, *((prefill, "queued_prompt_tokens") if number % 2 else (decode, "open_tickets")))
        await served(load)


async def test_b18_leaving_in_the_moment_in_which_prefill_ends_frees_everything_once(
    site: ChaosSite, load: ChaosLoad
) -> None:
    (router,) = site.routers
    rng = random.Random(3)
    clock = asyncio.get_running_loop().time
    wire = await wire_to(router)
    began_at = clock()
    wire.send(ask(150, max_tokens=1))
    await wire.answer()
    whole_s = clock() - began_at
    for _ in range(150):
        wire = await wire_to(router)
        wire.send(ask(150, stream=rng.random() < 0.5))
        await asyncio.sleep(max(0.0, whole_s + rng.uniform(-0.02, 0.005)))
        wire.cut()
    await served(load)


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
async def test_b22_leaving_a_request_that_is_not_streamed_stops_the_engines(
    site: ChaosSite, load: ChaosLoad, how: str
) -> None:
    (decode,), (router,) = site.of_role("decode"), site.routers
    before = (await site.metrics(router)).get("cancels_total", 0.0)
    wire = await wire_to(router)
    wire.send(ask(20, max_tokens=480))
    await seen(site, decode, "running_seqs", lambda running: running > 0, 10.0)
    if how == "reset":
        linger = struct.pack("ii", 1, 0)
        wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    wire.writer.write_eof() if how == "half-close" else await wire.close()
    await seen(site, decode, "running_seqs", lambda running: running == 0, SOON_S)
    await seen(site, router, "requests_in_flight", lambda requests: requests == 0, SOON_S)
    assert (await site.metrics(router))["cancels_total"] == before + 1


async def test_b21_connections_that_the_network_has_dropped_while_idle_cost_no_request(
    site: ChaosSite, load: ChaosLoad
) -> None:
    await served(load)
    for victim in site.engines:
        assert victim.proxy is not None
        victim.proxy.forget()
    site.store_proxy.forget()
    # Longer than the router keeps idle connections to engines; a proxy cannot say when that is over.
    await asyncio.sleep(4.5)
    await served(load)


@pytest.mark.timeout(60 + 40 * B4_ROUNDS)
async def test_b4_prefill_that_dies_before_its_write_costs_no_seats(site: ChaosSite, load: ChaosLoad) -> None:
    (prefill,), (decode,), (router,) = site.of_role("prefill"), site.of_role("decode"), site.routers
    for _ in range(B4_ROUNDS):
        prefill.freeze()
        wire = await wire_to(router)
        wire.send(ask(300))
        await seen(site, decode, "parked_seqs", lambda parked: parked > 0, 10.0)
        prefill.is_well = False
        prefill.kill()
        answer = await asyncio.wait_for(wire.answer(), 30.0)
        assert answer.status in (502, 503, 504)
        assert answer.json()["error"]["code"]
        prefill.start()
        await site.wait_well(prefill)
        # Seats of a dead writer come free once its access has ended; then a prompt that needs most of them is admitted.
        await seen(site, decode, "held_blocks", lambda blocks: blocks == 0, 10.0)
        await served(load)
