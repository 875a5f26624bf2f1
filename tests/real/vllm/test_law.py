"""The law on real vLLM: 100 prompts through the router, 8 at a time, equal a vLLM server that stands alone.

Unmodified and with our shim, by push and by pull, SmolLM2 in float32. The batch shape decides the order of float32
sums, so a first difference where the lone server's likeliest two logits lie within NEAR_TIE is a near-tie and is
counted; any other one is a failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from engine_shim.engine.reference.checkpoint import locate
from engine_shim.engine.reference.tokenizer import Tokenizer
from router.cli.local_fleet import free_port
from tests.support.law_cases import LawCase, law_cases
from tests.support.scenario_stand import Stand
from tests.support.vllm_processes import MODEL, VllmVictim, vllm_argv
from tests.support.vllm_site import START_S

pytestmark = [
    pytest.mark.needs("vllm", "model"),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(3600),
]
NEAR_TIE = 1e-3
NUM_CASES, AT_ONCE, ANSWER_TOKENS = 100, 8, 12
NUM_TRIES = 30
"""An engine that a busy machine keeps from answering its router for some seconds is out of the fleet for as long."""


@dataclass(frozen=True)
class Answer:
    """What a server said, and how far the likeliest two of its tokens were apart at each step."""

    tokens: list[int]
    gaps: list[float]


@pytest.fixture(scope="session")
def cases() -> list[LawCase]:
    tokenizer = Tokenizer.load(locate("smollm2-135m"))
    made = law_cases(lambda text: tokenizer.encode(text, add_special_tokens=False))
    return made[:: len(made) // NUM_CASES][:NUM_CASES]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def alone(tmp_path_factory: pytest.TempPathFactory, cases: list[LawCase]) -> Mapping[str, Answer]:
    """The answers of a server without a connector; it is gone afterwards, so that its memory is free."""
    folder = tmp_path_factory.mktemp("alone")
    port = free_port("127.0.0.1")
    log_path = folder / "alone.log"
    log_path.write_bytes(b"")
    server = VllmVictim("alone", "both", f"http://127.0.0.1:{port}", vllm_argv(port, model=MODEL), log_path)
    server.start()
    try:
        async with asyncio.timeout(START_S), httpx.AsyncClient(trust_env=False) as client:
            while not await _healthy(client, server.url):
                assert server.runs, server.tail()
                await asyncio.sleep(0.5)
        return await ask_all(server.url, cases)
    finally:
        server.stop()


async def _healthy(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


async def ask_all(url: str, cases: list[LawCase], mode: str = "") -> dict[str, Answer]:
    headers = {"x-tandem-mode": mode} if mode else {}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(client: httpx.AsyncClient, case: LawCase) -> tuple[str, Answer]:
        async with gate:
            return case.name, await ask(client, url, case, mode)

    async with httpx.AsyncClient(timeout=600, headers=headers, trust_env=False) as client:
        return dict(await asyncio.gather(*(one(client, case) for case in cases)))


async def ask(client: httpx.AsyncClient, url: str, case: LawCase, salt: str) -> Answer:
    """`salt`: what was cached for others is not used."""
    wish: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": ANSWER_TOKENS, "return_token_ids": True}
    wish["return_tokens_as_token_ids"] = True  # two tokens of one text would be one key
    wish |= {"cache_salt": salt} if salt else {}
    chat = case.endpoint.endswith("chat/completions")
    wish |= {"logprobs": True, "top_logprobs": 2} if chat else {"logprobs": 2}
    for _ in range(NUM_TRIES):
        reply = await client.post(url + case.endpoint, json=case.body | wish)
        if reply.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            break
        await asyncio.sleep(1.0)
    assert reply.status_code == 200, f"{case.name}: {reply.status_code} {reply.text[:300]}"
    choice = reply.json()["choices"][0]
    if chat:
        tops = [[top["logprob"] for top in token["top_logprobs"]] for token in choice["logprobs"]["content"]]
    else:
        tops = [list(top.values()) for top in choice["logprobs"]["top_logprobs"]]
    ordered = [sorted(top, reverse=True) for top in tops]
    return Answer(choice["token_ids"], [top[0] - top[1] for top in ordered])


def judge(got: list[int], wanted: Answer) -> str:
    """`equal`, `near_tie`, or what differs."""
    for index, token in enumerate(wanted.tokens):
        if index >= len(got) or got[index] != token:
            gap = wanted.gaps[index]
            return "near_tie" if gap < NEAR_TIE else f"token {index} of {got} is not {token} (gap {gap})"
    return "equal" if len(got) == len(wanted.tokens) else f"{got} is longer than {wanted.tokens}"


async def test_the_law(alone: Mapping[str, Answer], stand: Stand, cases: list[LawCase], record_property: Any) -> None:
    """`alone` comes first: its server is gone before others start."""
    before = await stand.site.metrics(stand.decode)
    answers = await ask_all(stand.site.routers[0].url, cases, stand.mode)
    verdicts = {case.name: judge(answers[case.name].tokens, alone[case.name]) for case in cases}
    near_ties = sum(verdict == "near_tie" for verdict in verdicts.values())
    record_property("near_ties", near_ties)
    print(f"{stand.site.engine} {stand.mode}: {len(cases)} prompts, {near_ties} near-ties")
    assert {name: one for name, one in verdicts.items() if one not in ("equal", "near_tie")} == {}
    assert near_ties <= 3
    after = await stand.site.metrics(stand.decode)
    moved, asked = (after[name] - before[name] for name in ("external_prefix_cache_hits_total", "prompt_tokens_total"))
    assert moved > 0.8 * asked, "KV cache has moved"
    await stand.quiet()
