"""Mixtures of experts over rank processes, through the router: the law, whatever the number of ranks on either side."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.support.dashboards import queries
from tests.support.metric_tables import promised, scraped
from tests.support.nvlink_groups import LIBRARY_VARIABLE
from tests.support.processes import ProcessSite
from tests.support.promql import unknown
from tests.support.rules import expressions

pytestmark = [pytest.mark.needs("nixl"), pytest.mark.timeout(600)]

COMMON = (
    "--numerics invariant --threads 1 --kv-bytes 4000000 --max-batch-tokens 64 --kv-wait-for-s 300 --lease-for-s 300 "
    "--expert-wait-for-s 60"
)
PATIENT = ("--prefill-s", "300", "--first-token-s", "300", "--next-token-s", "300", "--total-s", "400")
PROMPTS = ["a", "Experts are many, tokens few. " * 5, "Why is the sky blue?"]


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ProcessSite]:
    async with ProcessSite(tmp_path) as site:
        yield site


async def answers(site: ProcessSite, url: str, model: str) -> list[list[int]]:
    async def one(prompt: str) -> list[int]:
        body = {"model": model, "prompt": prompt, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        reply = await site.client.post(f"{url}/v1/completions", json=body | {"ignore_eos": True})
        assert reply.status_code == 200, reply.text
        tokens: list[int] = reply.json()["choices"][0]["token_ids"]
        return tokens

    return await asyncio.gather(*(one(prompt) for prompt in PROMPTS))


def ranks_of(site: ProcessSite, name: str) -> list[psutil.Process]:
    """Rank processes of one engine, by rank as they were forked."""
    return psutil.Process(site.engines[name].pid).children(recursive=True)


async def test_the_law_over_ranks_on_either_side_and_a_rank_that_is_killed(site: ProcessSite) -> None:
    await site.open_engines(
        e1=f"--role both --model tiny-moe {COMMON}",
        e2=f"--role both --model tiny-moe --ep 2 {COMMON}",
    )
    await site.open_router("from_ranks", "e2", "e1", "--mode", "push", *PATIENT)
    await site.open_router("to_ranks", "e1", "e2", "--mode", "push", *PATIENT)
    mono = await answers(site, site.engines["e1"].url, "tiny-moe")
    assert len({tuple(tokens) for tokens in mono}) == len(PROMPTS)
    for url in (site.engines["e2"].url, *site.routers.values()):
        assert await answers(site, url, "tiny-moe") == mono

    before = {process.pid for process in ranks_of(site, "e2")}
    asked = asyncio.create_task(
        site.client.post(
            f"{site.engines['e2'].url}/v1/completions",
            json={"model": "tiny-moe", "prompt": "x", "max_tokens": 400, "temperature": 0, "ignore_eos": True},
        )
    )
    while not await site.gauge(site.engines["e2"].url, "tandem_shim_running_seqs"):
        await asyncio.sleep(0.02)
    os.kill(max(before), signal.SIGKILL)
    reply = await asyncio.wait_for(asked, 30)
    assert reply.status_code == 503, reply.text
    assert reply.json()["error"]["code"] == "rank_gone"
    # The group begins anew, and the instance serves as before.
    assert await answers(site, site.routers["to_ranks"], "tiny-moe") == mono
    assert before.isdisjoint(process.pid for process in ranks_of(site, "e2"))

    told = scraped([site.engines["e2"].url])
    asked_for = [expr for _, expr in (*queries(), *expressions()) if "tandem_shim_expert_" in expr]
    assert len(asked_for) > 5
    assert [wrong for expr in asked_for if (wrong := unknown(expr, told))] == []
    assert {name: told[name] for name in promised() if name.startswith("tandem_shim_expert_")}

    everybody = ranks_of(site, "e2")
    assert len(everybody) == 2
    os.kill(site.engines["e2"].pid, signal.SIGKILL)
    _, left = psutil.wait_procs(everybody, timeout=60)
    assert left == []


@pytest.mark.parametrize("model", ["tiny-moe", "tiny-deepseek"])
async def test_the_law_over_one_to_eight_ranks_on_either_side(site: ProcessSite, model: str) -> None:
    common = f"--model {model} {COMMON}"
    flags = {ranks: f"--role both --ep {ranks} {common}" for ranks in (1, 2, 3, 4, 8)}
    flags[3] += " --expert-overlap"
    await site.open_engines(**{f"e{ranks}": flags[ranks] for ranks in flags})
    mono = await answers(site, site.engines["e1"].url, model)
    for ranks in (2, 3, 4, 8):
        assert await answers(site, site.engines[f"e{ranks}"].url, model) == mono
    for prefill, decode, mode in (
        ("e1", "e4", "push"),
        ("e3", "e8", "push"),
        ("e8", "e2", "push"),
        ("e4", "e1", "pull"),
    ):
        name = f"{prefill}{decode}"
        await site.open_router(name, prefill, decode, "--mode", mode, *PATIENT)
        assert await answers(site, site.routers[name], model) == mono


@pytest.mark.needs("gpu")
async def test_the_law_over_ranks_on_a_gpu(site: ProcessSite) -> None:
    common = f"--role both --model tiny-moe --device cuda --dtype float32 {COMMON}"
    nvlink = f"--expert-transport nvlink --expert-kernels={os.environ.get(LIBRARY_VARIABLE, '')}"
    await site.open_engines(
        e1=common,
        e2=f"{common} --ep 2 {nvlink}",
        e3=f"{common} --ep 3 --expert-overlap",
        e4=f"{common} --ep 4 {nvlink}",
        e8=f"{common} --ep 8 {nvlink}",
    )
    mono = await answers(site, site.engines["e1"].url, "tiny-moe")
    assert len({tuple(tokens) for tokens in mono}) == len(PROMPTS)
    for name in ("e2", "e3", "e4", "e8"):
        assert await answers(site, site.engines[name].url, "tiny-moe") == mono
    for prefill, decode, mode in (("e1", "e2", "push"), ("e3", "e8", "push"), ("e4", "e1", "pull")):
        name = f"{prefill}{decode}"
        await site.open_router(name, prefill, decode, "--mode", mode, *PATIENT)
        assert await answers(site, site.routers[name], "tiny-moe") == mono
