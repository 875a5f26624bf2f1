"""A router that is frozen with real engines at work for it: another one makes them stop."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from router.store.connection import connect
from router.store.embedded import EmbeddedStore
from tests.support.read_ledger import ReadLedger
from tests.support.router_process import router_process
from tests.support.up import read_metrics, tandem_up

pytestmark = [pytest.mark.needs("nixl", "model", "redis"), pytest.mark.timeout(300)]

KEY = "a key of this test alone"
NUM_TOKENS = 1500
"""More than an engine on a CPU computes before the lease of a frozen router has ended."""
BODY = {"model": "smollm2-135m", "prompt": "Once", "max_tokens": NUM_TOKENS, "ignore_eos": True, "stream": True}


async def test_engines_stop_working_for_a_router_that_is_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_DEPLOYMENT_KEY", KEY)
    with EmbeddedStore() as store, tandem_up(tmp_path, "--store", store.url, "--kv-bytes", "300000000") as up:
        redis = connect(store.url)
        ledger = ReadLedger(redis, "tandem", "reader")
        async with router_process("--store", store.url, "--router-lease-s", "2") as frozen:
            request = frozen.client.build_request("POST", "/v1/completions", json=BODY)
            answer = await frozen.client.send(request, stream=True)
            pieces = answer.aiter_text()
            await anext(pieces)
            async with asyncio.timeout(20):
                while await ledger.open_tickets() != 1:
                    await asyncio.sleep(0.02)
            frozen.process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(60):
                while await ledger.open_tickets() != 0:
                    await asyncio.sleep(0.05)
            await asyncio.to_thread(up.wait_quiet)
            decode = read_metrics(up.engines()["decode-0"])
            assert decode["tandem_shim_generation_tokens_total"] < NUM_TOKENS, "it was stopped before it was done"
            told = read_metrics(up.url)
            assert (told["tandem_reaped_tickets_total"], told["tandem_reaper_calls_total"]) == (1, 2)
            frozen.process.send_signal(signal.SIGCONT)
            rest = "".join([piece async for piece in pieces])
            assert '"error"' in rest
            assert "[DONE]" not in rest
        await redis.aclose()
