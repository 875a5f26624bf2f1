"""1,000 mixed requests, a fifth of whose clients leave at a random moment: afterwards nothing is held anywhere.

They go to a tiny checkpoint, whose engines are quick; a part of them goes to the real model, for whose memory there is
a promise.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import httpx
import pytest

from tests.support.up import MODEL, Up, tiny_up

pytestmark = [pytest.mark.needs("nixl", "model", "redis"), pytest.mark.timeout(600)]
NUM_REQUESTS = 1000
NUM_REAL = 120
LEAVING = 0.2
MIB = 1 << 20


@pytest.fixture(scope="module")
def quick_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with tiny_up(tmp_path_factory.mktemp("tiny-up")) as running:
        yield running


def wish(rng: random.Random, model: str) -> tuple[str, dict[str, object]]:
    """A request of a random kind."""
    words = " ".join(rng.choice(("apple", "river", "seven", "why", "é", "run")) for _ in range(rng.randint(1, 16)))
    fields: dict[str, object] = {"model": model, "max_tokens": rng.randint(1, 6), "stream": rng.random() < 0.5}
    if rng.random() < 0.3:
        fields["temperature"] = 0
    if rng.random() < 0.05:
        fields["n"] = 2
    if rng.random() < 0.05:
        fields["max_tokens"] = -1
    if rng.random() < 0.5:
        return "/v1/completions", fields | {"prompt": words}
    return "/v1/chat/completions", fields | {"messages": [{"role": "user", "content": words}]}


async def one(client: httpx.AsyncClient, url: str, model: str, seed: int) -> str:
    rng = random.Random(seed)
    path, fields = wish(rng, model)
    leaves = rng.random() < LEAVING

    async def read() -> int:
        async with client.stream("POST", url + path, json=fields) as answer:
            async for _ in answer.aiter_bytes():
                pass
            return answer.status_code

    reading = asyncio.create_task(read())
    if leaves:
        await asyncio.wait({reading}, timeout=rng.choice((0.0, 0.003, 0.01, 0.05, 0.2, 0.8)))
        if not reading.done():
            reading.cancel()
            await asyncio.wait({reading})
            return "left"
    status = await reading
    good = 400 if fields["max_tokens"] == -1 else 200
    return "answered" if status == good else f"status {status} for {fields}"


async def ask_and_leave(up: Up, model: str, num_requests: int) -> None:
    """So many requests have ended, as they should or because we left, and nothing of them is held."""
    gate = asyncio.Semaphore(16)
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as client:

        async def guarded(seed: int) -> str:
            async with gate:
                return await one(client, up.url, model, seed)

        ends = await asyncio.gather(*(guarded(seed) for seed in range(num_requests)))
    assert [end for end in ends if end not in ("left", "answered")] == []
    assert ends.count("left") > 0.05 * num_requests
    # Well below the 30 s of prefill's lease: what nobody fetches is taken back, not timed out.
    up.wait_quiet(8.0)
    sizes = up.rss_bytes()
    assert max(size for name, size in sizes.items() if name.startswith("router")) < 120 * MIB
    assert max(size for name, size in sizes.items() if name.startswith("engine")) < 1600 * MIB


async def test_nothing_is_held_after_a_thousand_requests(quick_up: Up) -> None:
    await ask_and_leave(quick_up, "tiny", NUM_REQUESTS)


async def test_nothing_is_held_by_the_real_model_and_memory_stays_in_bounds(up: Up) -> None:
    await ask_and_leave(up, MODEL, NUM_REAL)
