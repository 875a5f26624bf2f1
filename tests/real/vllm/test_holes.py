"""Each hole of vLLM's stock push connector, seen with the stock connector and closed by ours, on real servers.

Both pairs have the shortest waits that they can be given. What stock servers do here
was seen with vLLM 0.32.0; a test that fails on a newer release because a hole is gone is good news, and says which.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.support.vllm_pair import VllmPair, open_pair
from tests.support.vllm_processes import VllmVictim

pytestmark = [
    pytest.mark.needs("vllm"),
    pytest.mark.asyncio(loop_scope="class"),
    pytest.mark.timeout(2400),
]

PATIENCE_S = 15.0
"""Three times what the shim gives a KV cache that does not come."""


async def hangs(pair: VllmPair, transfer_id: str, prompt: list[int]) -> bool:
    try:
        await pair.decode_leg(transfer_id, prompt, PATIENCE_S)
    except httpx.ReadTimeout:
        return True
    return False


def code_of(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmPair]:
    """Of the class's own kind; the first class's is gone before the second's starts."""
    stock = request.cls is TestStock
    async with open_pair(tmp_path_factory.mktemp("stock" if stock else "ours"), stock=stock) as pair:
        yield pair


class TestStock:
    """vLLM's own NixlPushConnector."""

    async def test_it_serves(self, pair: VllmPair) -> None:
        await pair.serves()

    async def test_a_decode_whose_prefill_never_comes_hangs_and_leaks(self, pair: VllmPair) -> None:
        assert await hangs(pair, pair.fresh_id(), pair.prompt())
        assert not await pair.released(pair.decode, 5.0)

    async def test_a_decode_whose_prefill_is_refused_hangs(self, pair: VllmPair) -> None:
        transfer_id, prompt = pair.fresh_id(), pair.prompt()
        decoding = asyncio.create_task(hangs(pair, transfer_id, prompt))
        refused = await pair.prefill_leg(transfer_id, prompt, temperature=-1)
        assert refused.status_code == 400
        assert await decoding

    async def test_a_decode_that_comes_after_the_lease_hangs(self, pair: VllmPair) -> None:
        transfer_id, prompt = pair.fresh_id(), pair.prompt()
        assert (await pair.prefill_leg(transfer_id, prompt)).status_code == 200
        assert await pair.released(pair.prefill, 20.0)
        assert await hangs(pair, transfer_id, prompt)

    async def test_two_attempts_under_one_request_id_meet(self, pair: VllmPair) -> None:
        """What an attempt that was given up has registered takes the KV of a later one: other tokens, HTTP 200."""
        transfer_id, prompt, other = pair.fresh_id(), pair.prompt(), pair.prompt()
        decoding = asyncio.create_task(pair.decode_leg(transfer_id, prompt))
        await asyncio.sleep(1.0)
        assert (await pair.prefill_leg(transfer_id, other)).status_code == 200
        assert (await decoding).status_code == 200

    async def test_a_decode_whose_prefill_dies_hangs(self, pair: VllmPair) -> None:
        decoding = asyncio.create_task(hangs(pair, pair.fresh_id(), pair.prompt()))
        await asyncio.sleep(1.0)
        pair.prefill.kill()
        assert await decoding

    async def test_a_missing_field_ends_the_engine(self, pair: VllmPair) -> None:
        try:
            answer = await pair.decode_leg(pair.fresh_id(), pair.prompt(), tp_size=None)
            assert answer.status_code == 500
        except httpx.TransportError:
            pass
        await ended(pair.decode)


class TestOurs:
    """The same with our shim in front and our connector inside."""

    async def quiet(self, pair: VllmPair) -> None:
        assert await pair.released(pair.decode, 20.0)
        assert await pair.released(pair.prefill, 20.0)

    async def test_it_serves(self, pair: VllmPair) -> None:
        await pair.serves()
        await self.quiet(pair)

    async def test_a_decode_whose_prefill_never_comes_fails_and_its_blocks_come_back(self, pair: VllmPair) -> None:
        answer = await pair.decode_leg(pair.fresh_id(), pair.prompt())
        assert code_of(answer) == "kv_wait_timeout"
        await self.quiet(pair)

    async def test_a_client_that_leaves_costs_no_blocks(self, pair: VllmPair) -> None:
        with pytest.raises(httpx.ReadTimeout):
            await pair.decode_leg(pair.fresh_id(), pair.prompt(), 1.0)
        await self.quiet(pair)

    async def test_a_decode_whose_prefill_is_refused_hears_of_it(self, pair: VllmPair) -> None:
        transfer_id, prompt = pair.fresh_id(), pair.prompt()
        decoding = asyncio.create_task(pair.decode_leg(transfer_id, prompt))
        refused = await pair.prefill_leg(transfer_id, prompt, temperature=-1)
        assert refused.status_code == 400
        assert code_of(await decoding) == "transfer_failed"
        await self.quiet(pair)

    async def test_a_decode_that_comes_after_the_lease_hears_of_it(self, pair: VllmPair) -> None:
        transfer_id, prompt = pair.fresh_id(), pair.prompt()
        assert (await pair.prefill_leg(transfer_id, prompt)).status_code == 200
        assert await pair.released(pair.prefill, 20.0)
        assert code_of(await pair.decode_leg(transfer_id, prompt)) == "transfer_failed"
        await self.quiet(pair)

    async def test_legs_with_different_prompts_are_told_so(self, pair: VllmPair) -> None:
        transfer_id, prompt = pair.fresh_id(), pair.prompt()
        legs = await asyncio.gather(pair.decode_leg(transfer_id, prompt), pair.prefill_leg(transfer_id, prompt[:100]))
        assert code_of(legs[0]) == "transfer_failed"
        await self.quiet(pair)

    async def test_two_attempts_under_one_request_id_never_meet(self, pair: VllmPair) -> None:
        first, second, prompt, other = pair.fresh_id(), pair.fresh_id(), pair.prompt(), pair.prompt()
        decoding = asyncio.create_task(pair.decode_leg(first, prompt, request_id="the-same"))
        await asyncio.sleep(1.0)
        assert (await pair.prefill_leg(second, other, request_id="the-same")).status_code == 200
        assert code_of(await decoding) == "kv_wait_timeout"
        await self.quiet(pair)

    @pytest.mark.parametrize("field", ["remote_engine_id", "remote_host", "remote_port"])
    async def test_a_missing_field_is_a_bad_request(self, pair: VllmPair, field: str) -> None:
        answer = await pair.decode_leg(pair.fresh_id(), pair.prompt(), **{field: None})
        assert answer.status_code == 400
        await pair.serves()

    async def test_nothing_that_a_client_smuggles_reaches_the_engine(self, pair: VllmPair) -> None:
        for smuggled in ({"do_remote_prefill": True}, {"tandem_secret": "x"}, {"do_remote_decode": True}, [1], "x"):
            body = {"model": "tiny", "prompt": pair.prompt(), "max_tokens": 2}
            answer = await pair.client.post(
                f"{pair.decode.url}/v1/completions", json=body | {"vllm_xargs": {"kv_transfer_params": smuggled}}
            )
            assert answer.status_code in (200, 400)
        await pair.serves()
        await self.quiet(pair)

    async def test_rubbish_at_the_side_channel_harms_nobody(self, pair: VllmPair) -> None:
        for victim in (pair.prefill, pair.decode):
            for path in ("/kv/hello", "/kv/peer", "/kv/cancel", "/kv/fence"):
                for rubbish in (b"", b"\xff" * 100, b"{}", b'{"engine_id": 7}', b"[" * 1000):
                    answer = await pair.client.post(victim.url + path, content=rubbish)
                    assert 400 <= answer.status_code < 500
        await pair.serves()

    async def test_a_decode_whose_prefill_dies_hears_of_it(self, pair: VllmPair) -> None:
        decoding = asyncio.create_task(pair.decode_leg(pair.fresh_id(), pair.prompt()))
        await asyncio.sleep(1.0)
        family = psutil.Process(pair.prefill.pid).children(recursive=True)
        pair.prefill.kill()
        assert code_of(await decoding) in ("peer_gone", "kv_wait_timeout")
        assert await all_gone(family), "vLLM must not outlive its shim"
        assert await pair.released(pair.decode, 20.0)
        assert (await pair.plain(pair.decode, pair.prompt())).status_code == 200

    async def test_prefill_started_anew_at_the_same_address_is_met_at_once(self, pair: VllmPair) -> None:
        pair.prefill.start()
        await pair.wait_well(pair.prefill)
        await pair.meet()
        await pair.serves()
        await self.quiet(pair)

    async def test_when_a_worker_dies_its_shim_ends_and_the_port_refuses(self, pair: VllmPair) -> None:
        family = psutil.Process(pair.decode.pid).children(recursive=True)
        worker = [one for one in family if "Worker" in one.name() or "VLLM::Worker" in " ".join(one.cmdline())]
        assert len(worker) == 1
        worker[0].kill()
        await ended(pair.decode)
        with pytest.raises(httpx.ConnectError):
            await pair.client.get(f"{pair.decode.url}/healthz")
        assert await all_gone(family)

    async def test_sigterm_lets_a_request_finish_and_leaves_nothing_behind(self, pair: VllmPair) -> None:
        family = psutil.Process(pair.prefill.pid).children(recursive=True)
        assert len(family) >= 3
        body = {"model": "tiny", "prompt": pair.prompt(), "max_tokens": 100, "ignore_eos": True}
        running = asyncio.create_task(pair.client.post(f"{pair.prefill.url}/v1/completions", json=body, timeout=120))
        await asyncio.sleep(0.5)
        pair.prefill.signal(signal.SIGTERM)
        answer = await running
        assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 100)
        await ended(pair.prefill)
        assert await all_gone(family)


async def ended(victim: VllmVictim) -> None:
    async with asyncio.timeout(60):
        while victim.runs:
            await asyncio.sleep(0.2)


def lives(one: psutil.Process) -> bool:
    try:
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def all_gone(family: list[psutil.Process], within_s: float = 30.0) -> bool:
    """Zombies hold nothing; whether somebody collects them is not our business."""
    ends_at = time.monotonic() + within_s
    while any(map(lives, family)):
        if time.monotonic() > ends_at:
            return False
        await asyncio.sleep(0.2)
    return True
