"""Progressive push between real processes over real NIXL: the law in chunks and in layers, and an end at each of them.

Also the law for every pair of memory orders, since only prompts in chunks and layers meet all of their spans.

On demand (`make progressive`). A step of prefill is 32 tokens, so that a long prompt has many chunks; or it is a whole
prompt, which goes by the layers of a model that has many.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import pytest

from engine_shim.engine.reference.seeded_models import SEEDED, seeded_model, write_model
from tests.support.processes import ProcessSite

pytestmark = [pytest.mark.needs("nixl"), pytest.mark.timeout(900)]

EXACT = "--threads 1 --numerics invariant --max-context-tokens 1024 --kv-bytes 8000000"
IN_CHUNKS = "--role prefill --max-batch-tokens 32 --push-least-tokens 16"
IN_LAYERS = "--role prefill --max-batch-tokens 1024 --push-least-tokens 16 --block-tokens 64"
PUSH = ("--mode", "push", "--prefill-s", "500", "--first-token-s", "500", "--total-s", "600")
DECODES = {
    "d16": "--block-tokens 16",
    "d8": "--block-tokens 8 --kv-order layer_first",
    "d32": "--block-tokens 32 --staging-bytes 4194304",
}
ORDERS = ("block_first", "layer_first", "head_major")
BLOCK_TOKENS = {"block_first": 8, "layer_first": 32, "head_major": 16}
"""Of decode's blocks; prefill's hold 16 tokens, or 64 of a deep model, so that layers are worth a WRITE."""
NUM_CHUNKS = 10
"""Of the prompt that is ended at each of them."""
NUM_LAYERS = 24
LAYER_WRITES = 7
"""Of a prompt before its prefill is done, where the wire keeps pace: the engine tells of every third layer."""


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[ProcessSite]:
    """A monolithic engine, a prefill that works in small steps and stages, and decodes of other block sizes."""
    async with ProcessSite(tmp_path) as site:
        common = common_flags()
        decodes = {name: f"--role decode {flags} {common}" for name, flags in DECODES.items()}
        await site.open_engines(
            mono=f"--role both --no-prefix-cache {common}",
            p=f"{IN_CHUNKS} --staging-bytes 4194304 {common}",
            **decodes,
        )
        yield site


@pytest.fixture
async def couple(tmp_path: Path) -> AsyncIterator[ProcessSite]:
    """The prefill and one decode."""
    async with ProcessSite(tmp_path) as site:
        await site.open_engines(p=f"{IN_CHUNKS} {common_flags()}", d16=f"--role decode {common_flags()}")
        yield site


@pytest.fixture
async def layered(tmp_path: Path) -> AsyncIterator[ProcessSite]:
    """A prefill that works in whole prompts, a decode, and one that does both."""
    common = f"--no-prefix-cache {common_flags(deep_model(tmp_path))}"
    async with ProcessSite(tmp_path) as site:
        await site.open_engines(
            mono=f"--role both {common}",
            p=f"{IN_LAYERS} {common}",
            d16=f"--role decode --kv-order layer_first {common}",
        )
        yield site


def common_flags(model: Path | None = None) -> str:
    return f"--model {model or seeded_model('tiny-moe')} --model-name tiny {EXACT}"


def deep_model(folder: Path) -> Path:
    """A model of many layers."""
    with mock.patch.dict(SEEDED, {"tiny-deep": SEEDED["tiny-qwen3"] | {"num_hidden_layers": NUM_LAYERS}}):
        (folder / "tiny-deep").mkdir()
        write_model("tiny-deep", folder / "tiny-deep")
    return folder / "tiny-deep"


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(256) for _ in range(num_tokens)]


async def ask(site: ProcessSite, url: str, prompt: list[int], max_tokens: int = 6) -> list[int]:
    body: dict[str, Any] = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": max_tokens}
    reply = await site.client.post(f"{url}/v1/completions", json=body | {"return_token_ids": True})
    assert reply.status_code == 200, reply.text[:300]
    tokens: list[int] = reply.json()["choices"][0]["token_ids"]
    return tokens


async def early_writes(site: ProcessSite, prefill: str = "p") -> float:
    """WRITEs so far that prefill has posted before it was done."""
    text = (await site.client.get(f"{site.engines[prefill].url}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("tandem_shim_push_writes_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'when="early"' in line)


async def copies(site: ProcessSite, mover: str, peer: str) -> float:
    """Copies between these two that are done."""
    text = (await site.client.get(f"{site.engines[mover].url}/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("tandem_shim_copies_total")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if f'"{peer}"' in line and '"done"' in line)


async def test_the_law_holds_in_chunks_for_every_pair_of_block_sizes(site: ProcessSite) -> None:
    prompts = [prompt_of(length, length) for length in (5, 32, 33, 65, 200, 333, 500, 777, 900)]
    # A second turn: decode has the beginning in its prefix cache, and gets only what is missing.
    longer = [prompt + prompt_of(90, seed) for seed, prompt in enumerate(prompts)]
    want = [await ask(site, site.engines["mono"].url, prompt) for prompt in (*prompts, *longer)]
    assert len({tuple(tokens) for tokens in want}) == len(want)
    router = await site.open_router("all", "p", ",".join(DECODES), *PUSH, "--decode-policy", "round_robin")
    for turn, expected in ((prompts, want[: len(prompts)]), (longer, want[len(prompts) :])):
        for _ in DECODES:
            assert await asyncio.gather(*(ask(site, router, prompt) for prompt in turn)) == expected
    assert await early_writes(site) > 60, "hardly anything was pushed in chunks"
    for name in DECODES:
        assert await site.gauge(site.engines[name].url, "tandem_shim_prefix_hit_tokens_total") > 0
    await site.wait_quiet()


@pytest.mark.parametrize(
    ("mode", "steps"),
    [("push", IN_CHUNKS), ("push", IN_LAYERS), ("pull", IN_CHUNKS)],
    ids=["push-chunks", "push-layers", "pull"],
)
@pytest.mark.parametrize("staging_bytes", [0, 4194304])
async def test_the_law_holds_for_every_pair_of_memory_orders(
    tmp_path: Path, mode: str, steps: str, staging_bytes: int
) -> None:
    model = deep_model(tmp_path) if steps == IN_LAYERS else None
    common = f"--no-prefix-cache --staging-bytes {staging_bytes} {common_flags(model)}"
    prompts = [prompt_of(length, length) for length in (5, 33, 200, 777)]
    async with ProcessSite(tmp_path) as site:
        await site.open_engines(
            mono=f"--role both {common}",
            **{f"p_{order}": f"{steps} --kv-order {order} {common}" for order in ORDERS},
            **{
                f"d_{order}": f"--role decode --kv-order {order} --block-tokens {BLOCK_TOKENS[order]} {common}"
                for order in ORDERS
            },
        )
        want = [await ask(site, site.engines["mono"].url, prompt) for prompt in prompts]
        assert len({tuple(tokens) for tokens in want}) == len(want)
        decodes = ",".join(f"d_{order}" for order in ORDERS)
        for order in ORDERS:
            flags = ("--mode", mode, *PUSH[2:], "--decode-policy", "round_robin")
            router = await site.open_router(order, f"p_{order}", decodes, *flags)
            for prompt, expected in zip(prompts, want, strict=True):
                for _ in ORDERS:  # of decode: one after the other
                    assert await ask(site, router, prompt) == expected
        for pair in itertools.product(ORDERS, ORDERS):
            prefill, decode = f"p_{pair[0]}", f"d_{pair[1]}"
            assert await copies(site, *((prefill, decode) if mode == "push" else (decode, prefill))) > 0, pair
            assert mode == "pull" or await early_writes(site, prefill) > 6, pair
        await site.wait_quiet()


async def test_a_client_that_leaves_at_any_chunk_leaves_nothing(site: ProcessSite) -> None:
    await _leave_at_each(site, NUM_CHUNKS)


async def test_a_client_that_leaves_at_any_layers_leaves_nothing(layered: ProcessSite) -> None:
    await _leave_at_each(layered, LAYER_WRITES)


async def _leave_at_each(site: ProcessSite, most_writes: int) -> None:
    """A client leaves when so many WRITEs of its prompt have been posted; the next one is served well."""
    router = await site.open_router("d16", "p", "d16", *PUSH)
    reached = set()
    for chunk in range(most_writes):
        before = await early_writes(site)
        asking = asyncio.create_task(ask(site, router, prompt_of(900, 1000 + chunk)))
        while not asking.done() and await early_writes(site) - before < chunk:
            await asyncio.sleep(0)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
            await asking
        reached.add(await early_writes(site) - before)
        await site.wait_quiet()
        prompt = prompt_of(100, chunk)
        assert await ask(site, router, prompt) == await ask(site, site.engines["mono"].url, prompt)
    assert len(reached) >= most_writes // 2, f"the ends were at {sorted(reached)} WRITEs only"


@pytest.mark.parametrize("victim", ["d16", "p"])
@pytest.mark.parametrize("chunk", [0, 1, 4, 9])
async def test_a_process_that_is_killed_at_a_chunk_costs_an_honest_error_and_nothing_stays_held(
    couple: ProcessSite, victim: str, chunk: int
) -> None:
    await _kill_at(couple, victim, chunk)


@pytest.mark.parametrize("victim", ["d16", "p"])
@pytest.mark.parametrize("writes", [1, 3, 5])
async def test_a_process_that_is_killed_at_layers_costs_an_honest_error_and_nothing_stays_held(
    layered: ProcessSite, victim: str, writes: int
) -> None:
    await _kill_at(layered, victim, writes)


async def _kill_at(site: ProcessSite, victim: str, num_writes: int) -> None:
    """A process dies when so many WRITEs of a prompt have been posted."""
    router = await site.open_router("d16", "p", "d16", *PUSH)
    assert await ask(site, router, prompt_of(100, 7)), "the pair serves"
    before = await early_writes(site)
    body = {"model": "tiny", "prompt": prompt_of(900, num_writes), "temperature": 0, "max_tokens": 6}
    asking = asyncio.create_task(site.client.post(f"{router}/v1/completions", json=body))
    while not asking.done() and await early_writes(site) - before < num_writes:
        await asyncio.sleep(0)
    os.kill(site.engines[victim].pid, signal.SIGKILL)
    reply = await asking
    assert reply.status_code in (502, 503, 504), reply.text[:300]
    del site.engines[victim]
    await site.wait_quiet(60.0)
