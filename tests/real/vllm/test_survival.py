"""Whatever clients send, real vLLM engines behind the router live on, and nobody is left waiting on decode."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
import psutil
import pytest

from tests.support.odd_bodies import fuzzed_texts, odd_chats, odd_texts
from tests.support.scenario_stand import CHAT, TEXT, Stand, has_none, has_requests, until

pytestmark = [
    pytest.mark.needs("vllm", "model"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(3600),
]
AT_ONCE, NUM_FUZZED, NUM_LATE = 8, 120, 8
LONGEST_MS = 30_000


def family(stand: Stand) -> dict[str, set[int]]:
    """Every process of both engines: API server, EngineCore, worker, and our shim where there is one."""
    return {
        victim.name: {victim.pid, *(one.pid for one in psutil.Process(victim.pid).children(recursive=True))}
        for victim in (stand.prefill, stand.decode)
    }


async def send_all(stand: Stand, path: str, bodies: list[bytes]) -> Counter[int]:
    """How often each status came; after each handful both engines live. Prints what was neither served nor refused."""
    url, headers = stand.site.routers[0].url + path, {"content-type": "application/json", "x-tandem-mode": stand.mode}
    headers["x-request-timeout-ms"] = str(LONGEST_MS)
    seen: Counter[int] = Counter()
    for bunch in (bodies[at : at + AT_ONCE] for at in range(0, len(bodies), AT_ONCE)):
        answers = await asyncio.gather(*(stand.client.post(url, content=body, headers=headers) for body in bunch))
        seen.update(answer.status_code for answer in answers)
        for body, answer in zip(bunch, answers, strict=True):
            if answer.is_server_error:
                print(answer.status_code, answer.text[:200], "for", body[:200])
        for victim in (stand.prefill, stand.decode):
            alive = victim.runs and (await stand.client.get(f"{victim.url}/health")).status_code == httpx.codes.OK
            assert alive, f"{victim.name} was ended by one of {bunch}:\n{victim.tail(40)}"
    return seen


@pytest.mark.parametrize(
    ("path", "bodies"),
    [(TEXT, odd_texts()), (CHAT, odd_chats()), (TEXT, fuzzed_texts(NUM_FUZZED, 5))],
    ids=["texts", "chats", "fuzzed"],
)
async def test_no_body_ends_an_engine(stand: Stand, path: str, bodies: list[bytes]) -> None:
    before = family(stand)
    seen = await send_all(stand, path, bodies)
    print(f"{stand.site.engine} {stand.mode}: {dict(seen)}")
    assert seen[200] and seen[400]
    after = family(stand)
    assert all(before[name] <= after[name] for name in before), "a process has ended, or was started anew"
    await stand.served()
    await stand.quiet()


async def test_nobody_waits_on_decode_beyond_a_deadline(stand: Stand) -> None:
    """Prefill has stopped: each request ends at its own deadline, on decode as well."""
    case = stand.site.cases[-1]
    url, prompts = stand.site.routers[0].url + TEXT, [[token, *case.prompt] for token in range(20, 20 + NUM_LATE)]

    async def ask(number: int, prompt: list[int]) -> httpx.Response:
        headers = {"x-tandem-mode": stand.mode, "x-request-timeout-ms": str(1500 + 500 * number)}
        body = stand.body(case, prompt=prompt, stream=number % 2 == 0)
        return await stand.client.post(url, json=body, headers=headers)

    stand.prefill.freeze()
    try:
        asked = [asyncio.create_task(ask(number, prompt)) for number, prompt in enumerate(prompts)]
        if stand.mode == "push":
            await until(lambda: has_requests(stand, stand.decode))
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [504] * NUM_LATE
        await until(lambda: has_none(stand, stand.decode))
    finally:
        stand.prefill.thaw()
    await stand.served()
    await stand.quiet()
