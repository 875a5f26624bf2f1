"""What our shim and connector do where the stock push connector has a hole (`test_holes.py`), on real vLLM servers."""

import asyncio
import signal
from collections.abc import AsyncIterator

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.support.vllm_pair import (
    VllmPair,
    all_gone,
    calls_of_mute_peers,
    code_of,
    ended,
    family_of,
    frozen,
    open_pair,
)

pytestmark = [
    pytest.mark.needs("vllm"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(2400),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmPair]:
    async with open_pair(tmp_path_factory.mktemp("ours"), stock=False) as pair:
        yield pair


async def quiet(pair: VllmPair) -> None:
    assert await pair.released(pair.decode, 20.0)
    assert await pair.released(pair.prefill, 20.0)


async def test_mute_peers_hold_up_nobody(pair: VllmPair) -> None:
    async with calls_of_mute_peers(pair):
        await pair.serves()
    await quiet(pair)


async def test_it_serves(pair: VllmPair) -> None:
    await pair.serves()
    await quiet(pair)


async def test_the_blocks_of_a_running_write_outlast_the_lease(pair: VllmPair) -> None:
    transfer_id, prompt = pair.fresh_id(), pair.prompt()
    decoding = asyncio.create_task(pair.decode_leg(transfer_id, prompt, 120.0))
    await pair.parked(pair.decode)
    with frozen(*family_of(pair.decode)):
        assert (await pair.prefill_leg(transfer_id, prompt)).status_code == 200
        assert not await pair.released(pair.prefill, 10.0)
        assert await pair.metric(pair.prefill, "tandem_shim_live_transfers") == 1
    answer = await decoding
    assert answer.status_code == 200 or code_of(answer) in ("kv_wait_timeout", "transfer_failed")
    await quiet(pair)


async def test_what_has_landed_is_known_before_decodes_next_step(pair: VllmPair) -> None:
    """Stock decode looks for it once a step, which cannot be told apart from outside; ours needs no step."""
    transfer_id, prompt = pair.fresh_id(), pair.prompt()
    decoding = asyncio.create_task(pair.decode_leg(transfer_id, prompt, 120.0))
    await pair.parked(pair.decode)
    (core,) = (one for one in family_of(pair.decode) if "EngineCore" in " ".join((one.name(), *one.cmdline())))
    with frozen(core):
        assert await pair.metric(pair.decode, "tandem_shim_held_blocks") > 0
        assert (await pair.prefill_leg(transfer_id, prompt)).status_code == 200
        async with asyncio.timeout(30):
            while await pair.metric(pair.decode, "tandem_shim_held_blocks"):
                await asyncio.sleep(0.1)
    assert (await decoding).status_code == 200
    await quiet(pair)


async def test_a_decode_whose_prefill_never_comes_fails_and_its_blocks_come_back(pair: VllmPair) -> None:
    answer = await pair.decode_leg(pair.fresh_id(), pair.prompt())
    assert code_of(answer) == "kv_wait_timeout"
    await quiet(pair)


async def test_a_client_that_leaves_costs_no_blocks(pair: VllmPair) -> None:
    with pytest.raises(httpx.ReadTimeout):
        await pair.decode_leg(pair.fresh_id(), pair.prompt(), 1.0)
    await quiet(pair)


async def test_a_decode_whose_prefill_is_refused_hears_of_it(pair: VllmPair) -> None:
    transfer_id, prompt = pair.fresh_id(), pair.prompt()
    decoding = asyncio.create_task(pair.decode_leg(transfer_id, prompt))
    refused = await pair.prefill_leg(transfer_id, prompt, temperature=-1)
    assert refused.status_code == 400
    assert code_of(await decoding) == "transfer_failed"
    await quiet(pair)


async def test_a_decode_that_comes_after_the_lease_hears_of_it(pair: VllmPair) -> None:
    transfer_id, prompt = pair.fresh_id(), pair.prompt()
    assert (await pair.prefill_leg(transfer_id, prompt)).status_code == 200
    assert await pair.released(pair.prefill, 20.0)
    assert code_of(await pair.decode_leg(transfer_id, prompt)) == "transfer_failed"
    await quiet(pair)


async def test_legs_with_different_prompts_are_told_so(pair: VllmPair) -> None:
    transfer_id, prompt = pair.fresh_id(), pair.prompt()
    legs = await asyncio.gather(pair.decode_leg(transfer_id, prompt), pair.prefill_leg(transfer_id, prompt[:100]))
    assert code_of(legs[0]) == "transfer_failed"
    await quiet(pair)


async def test_two_attempts_under_one_request_id_never_meet(pair: VllmPair) -> None:
    first, second, prompt, other = pair.fresh_id(), pair.fresh_id(), pair.prompt(), pair.prompt()
    decoding = asyncio.create_task(pair.decode_leg(first, prompt, request_id="the-same"))
    await asyncio.sleep(1.0)
    assert (await pair.prefill_leg(second, other, request_id="the-same")).status_code == 200
    assert code_of(await decoding) == "kv_wait_timeout"
    await quiet(pair)


@pytest.mark.parametrize("field", ["remote_engine_id", "remote_host", "remote_port"])
async def test_a_missing_field_is_a_bad_request(pair: VllmPair, field: str) -> None:
    answer = await pair.decode_leg(pair.fresh_id(), pair.prompt(), **{field: None})
    assert answer.status_code == 400
    await pair.serves()


async def test_nothing_that_a_client_smuggles_reaches_the_engine(pair: VllmPair) -> None:
    for smuggled in ({"do_remote_prefill": True}, {"tandem_secret": "x"}, {"do_remote_decode": True}, [1], "x"):
        body = {"model": "tiny", "prompt": pair.prompt(), "max_tokens": 2}
        answer = await pair.client.post(
            f"{pair.decode.url}/v1/completions", json=body | {"vllm_xargs": {"kv_transfer_params": smuggled}}
        )
        assert answer.status_code in (200, 400)
    await pair.serves()
    await quiet(pair)


async def test_rubbish_at_the_side_channel_harms_nobody(pair: VllmPair) -> None:
    for victim in (pair.prefill, pair.decode):
        for path in ("/kv/hello", "/kv/peer", "/kv/cancel", "/kv/fence"):
            for rubbish in (b"", b"\xff" * 100, b"{}", b'{"engine_id": 7}', b"[" * 1000):
                answer = await pair.client.post(victim.url + path, content=rubbish)
                assert 400 <= answer.status_code < 500
    await pair.serves()


async def test_a_decode_whose_prefill_dies_hears_of_it(pair: VllmPair) -> None:
    decoding = asyncio.create_task(pair.decode_leg(pair.fresh_id(), pair.prompt()))
    await asyncio.sleep(1.0)
    family = psutil.Process(pair.prefill.pid).children(recursive=True)
    pair.prefill.kill()
    assert code_of(await decoding) in ("peer_gone", "kv_wait_timeout")
    assert await all_gone(family), "vLLM must not outlive its shim"
    assert await pair.released(pair.decode, 20.0)
    assert (await pair.plain(pair.decode, pair.prompt())).status_code == 200


async def test_prefill_started_anew_at_the_same_address_is_met_at_once(pair: VllmPair) -> None:
    pair.prefill.start()
    await pair.wait_well(pair.prefill)
    await pair.meet()
    await pair.serves()
    await quiet(pair)


async def test_when_a_worker_dies_its_shim_ends_and_the_port_refuses(pair: VllmPair) -> None:
    family = psutil.Process(pair.decode.pid).children(recursive=True)
    worker = [one for one in family if "Worker" in one.name() or "VLLM::Worker" in " ".join(one.cmdline())]
    assert len(worker) == 1
    worker[0].kill()
    await ended(pair.decode)
    with pytest.raises(httpx.ConnectError):
        await pair.client.get(f"{pair.decode.url}/healthz")
    assert await all_gone(family)


async def test_sigterm_lets_a_request_finish_and_leaves_nothing_behind(pair: VllmPair) -> None:
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
