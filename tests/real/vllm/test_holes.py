"""Each hole of vLLM's stock push connector, seen on real, unmodified servers; `test_closed_holes.py` shows ours.

Both pairs have the shortest waits that they can be given. What stock servers do here was seen with vLLM 0.32.0; a test
that fails on a newer release because a hole is gone is good news, and says which.
"""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.support.vllm_pair import VllmPair, calls_of_mute_peers, ended, family_of, frozen, hangs, open_pair
from tests.support.vllm_processes import ROOT
from tests.support.vllm_shims import PYTHON

pytestmark = [
    pytest.mark.needs("vllm"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(2400),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmPair]:
    async with open_pair(tmp_path_factory.mktemp("stock"), stock=True) as pair:
        yield pair


async def test_mute_peers_hold_up_whomever_decode_meets_next(pair: VllmPair) -> None:
    """Decode calls one peer after the other, 5 s each: the lease of a healthy prefill ends meanwhile."""
    async with calls_of_mute_peers(pair) as statuses:
        transfer_id, prompt = pair.fresh_id(), pair.prompt()
        decoding = asyncio.create_task(hangs(pair, transfer_id, prompt))
        assert (await pair.prefill_leg(transfer_id, prompt)).status_code == 200
        assert await decoding
    assert set(statuses) == {500}


async def test_it_serves(pair: VllmPair) -> None:
    await pair.serves()


async def test_a_decode_whose_prefill_never_comes_hangs_and_leaks(pair: VllmPair) -> None:
    assert await hangs(pair, pair.fresh_id(), pair.prompt())
    assert not await pair.released(pair.decode, 5.0)


async def test_a_decode_whose_prefill_is_refused_hangs(pair: VllmPair) -> None:
    transfer_id, prompt = pair.fresh_id(), pair.prompt()
    decoding = asyncio.create_task(hangs(pair, transfer_id, prompt))
    refused = await pair.prefill_leg(transfer_id, prompt, temperature=-1)
    assert refused.status_code == 400
    assert await decoding


async def test_a_decode_that_comes_after_the_lease_hangs(pair: VllmPair) -> None:
    transfer_id, prompt = pair.fresh_id(), pair.prompt()
    assert (await pair.prefill_leg(transfer_id, prompt)).status_code == 200
    assert await pair.released(pair.prefill, 20.0)
    assert await hangs(pair, transfer_id, prompt)


async def test_two_attempts_under_one_request_id_meet(pair: VllmPair) -> None:
    """What an attempt that was given up has registered takes the KV of a later one: other tokens, HTTP 200."""
    transfer_id, prompt, other = pair.fresh_id(), pair.prompt(), pair.prompt()
    decoding = asyncio.create_task(pair.decode_leg(transfer_id, prompt))
    await asyncio.sleep(1.0)
    assert (await pair.prefill_leg(transfer_id, other)).status_code == 200
    assert (await decoding).status_code == 200


async def test_a_lease_that_ends_during_a_write_gives_its_blocks_away(pair: VllmPair) -> None:
    """Others use them while the WRITE still reads them; its end, which decode takes for KV, shows that it did."""
    transfer_id, prompt = pair.fresh_id(), pair.prompt()
    decoding = asyncio.create_task(pair.decode_leg(transfer_id, prompt, 120.0))
    await pair.parked(pair.decode)
    with frozen(*family_of(pair.decode)):
        assert (await pair.prefill_leg(transfer_id, prompt)).status_code == 200
        assert await pair.released(pair.prefill, 20.0)
        assert f"Releasing expired KV blocks for request cmpl-{transfer_id}" in pair.prefill.tail(20)
        assert (await pair.plain(pair.prefill, pair.prompt())).status_code == 200
    while not decoding.done():  # an idle prefill does not look whether its WRITEs have ended
        assert (await pair.plain(pair.prefill, pair.prompt(5))).status_code == 200
        await asyncio.wait({decoding}, timeout=1.0)
    assert (await decoding).status_code == 200


async def test_rubbish_at_the_side_channel_ends_its_listener(pair: VllmPair) -> None:
    """From then on prefill cannot be met by anybody."""
    program = ROOT / "tests" / "support" / "vllm_side_channel.py"
    asked = await asyncio.create_subprocess_exec(PYTHON, program, str(pair.prefill.side_port), stdout=subprocess.PIPE)
    told, _ = await asked.communicate()
    assert json.loads(told.partition(b"ANSWERS ")[2]) == [True, False, False]


async def test_a_decode_whose_prefill_dies_hangs(pair: VllmPair) -> None:
    decoding = asyncio.create_task(hangs(pair, pair.fresh_id(), pair.prompt()))
    await asyncio.sleep(1.0)
    pair.prefill.kill()
    assert await decoding


async def test_a_missing_field_ends_the_engine(pair: VllmPair) -> None:
    try:
        answer = await pair.decode_leg(pair.fresh_id(), pair.prompt(), tp_size=None)
        assert answer.status_code == 500
    except httpx.TransportError:
        pass
    await ended(pair.decode)
