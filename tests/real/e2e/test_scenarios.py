"""End-to-end scenarios that run on the reference engine and, with TANDEM_TEST_ENGINE=vllm or vllm-shim, on real vLLM.

`make test` runs them on the reference engine, `make test-vllm` on vLLM, stock and with our shim. What an engine cannot
keep without our shim is said where it is allowed: `tests/real/vllm/` shows it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.support.chaos_load import Case
from tests.support.scenario_sites import CHOSEN, OpenSite
from tests.support.scenario_stand import (
    CHAT,
    TEXT,
    Stand,
    has_none,
    has_requests,
    leave_while_frozen,
    lists,
    open_stand,
    read_stream,
    tokens_of,
    until,
)
from tests.support.vllm_servers import VllmServer, Wire

pytestmark = [
    pytest.mark.needs("nixl", "redis") if "reference" in CHOSEN else pytest.mark.needs("vllm"),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300 if CHOSEN == ("reference",) else 1800),
]
KINDS = [f"{engine}-{mode}" for engine in CHOSEN for mode in (("push",) if engine == "reference" else ("push", "pull"))]
"""The reference engine's pull mode has its own tests (`test_law.py`, `chaos/`)."""
LONG = {"max_tokens": 60}
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenSite]:
    site = OpenSite(tmp_path_factory.mktemp)
    yield site
    await site.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=KINDS)
async def stand(opened: OpenSite, request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async with open_stand(opened, request.param) as stand:
        yield stand


async def test_the_law(stand: Stand) -> None:
    """Eight at a time, plain and streamed, equal what one engine alone has answered."""
    gate = asyncio.Semaphore(8)

    async def one(case: Case, *, streamed: bool) -> list[int]:
        async with gate:
            if not streamed:
                return tokens_of(await stand.post(TEXT, stand.body(case)))[0]
            async with stand.stream(stand.body(case)) as answer:
                tokens, error, done = (await read_stream(answer.aiter_bytes())).tokens()
            assert (error, done) == ("", True)
            return tokens

    cases = stand.site.cases
    answers = await asyncio.gather(*(one(case, streamed=number % 3 == 0) for number, case in enumerate(cases)))
    assert answers == [list(case.answer) for case in cases]
    await stand.quiet()


async def test_a_prompt_that_decode_has_seen(stand: Stand) -> None:
    """The longest prompt again and again, part of it, and more than it: decode has a prefix of each."""
    case = max(stand.site.cases, key=lambda one: len(one.prompt))
    first = tokens_of(await stand.post(TEXT, stand.body(case)))
    assert first == tokens_of(await stand.post(TEXT, stand.body(case))) == [list(case.answer)]
    for prompt in (case.prompt[:-7], case.prompt + case.answer, case.prompt[:128], case.prompt[:129]):
        body = stand.body(case, prompt=list(prompt))
        alone = await stand.post(TEXT, body | {"cache_salt": "other"}, mode="local")
        assert tokens_of(await stand.post(TEXT, body)) == tokens_of(alone)
    await stand.quiet()


async def test_several_prompts_and_several_answers(stand: Stand) -> None:
    one, two = stand.site.cases[4:6]
    both = stand.body(one, prompt=[list(one.prompt), list(two.prompt)], max_tokens=4)
    assert tokens_of(await stand.post(TEXT, both, mode="")) == [list(case.answer[:4]) for case in (one, two)]
    likeliest = {"temperature": 1.0, "top_k": 1}  # vLLM refuses n > 1 with a temperature of 0
    assert tokens_of(await stand.post(TEXT, stand.body(one, n=2, **likeliest), mode="")) == [list(one.answer)] * 2
    await stand.quiet()


async def test_logprobs(stand: Stand) -> None:
    """Every token has its own, the first included."""
    case = stand.site.cases[5]
    answer = await stand.post(TEXT, stand.body(case, logprobs=2))
    alone = await stand.post(TEXT, stand.body(case, logprobs=2), mode="local")
    assert tokens_of(answer) == tokens_of(alone)
    got, wanted = (one.json()["choices"][0]["logprobs"]["token_logprobs"] for one in (answer, alone))
    assert len(got) == len(case.answer)
    assert got == pytest.approx(wanted, abs=1e-3)


async def test_tools(stand: Stand) -> None:
    """They are part of the prompt on both legs."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
    body |= {"tools": [TOOL], "tool_choice": "auto", "return_token_ids": True}
    answer, alone = await stand.post(CHAT, body), await stand.post(CHAT, body, mode="local")
    assert tokens_of(answer) == tokens_of(alone)
    forced = body | {"tool_choice": {"type": "function", "function": {"name": "f"}}, "max_tokens": 20}
    answer = await stand.post(CHAT, forced)
    if stand.site.engine == "reference":
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tool_choice")
        return
    assert tokens_of(answer) == tokens_of(await stand.post(CHAT, forced, mode="local"))


async def test_a_json_schema(stand: Stand) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "A number?"}], "max_tokens": 60, "temperature": 0}
    body |= {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}}
    answer = await stand.post(CHAT, body)
    if stand.site.engine == "reference":
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
        return
    choice = answer.json()["choices"][0]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"])["n"], int)
    assert choice["message"]["content"].lstrip().startswith("{")
    await stand.quiet()


@pytest.mark.parametrize("frozen", ["prefill", "decode", "nobody"])
async def test_a_client_that_leaves(stand: Stand, frozen: str) -> None:
    """While prefill computes, while decode waits for its turn, and in the middle of a stream: nothing stays held."""
    case = max(stand.site.cases, key=lambda one: len(one.prompt))
    body = stand.body(case, prompt=[7, *case.prompt], **LONG)
    if frozen == "nobody":
        async with stand.stream(body) as answer:
            await anext(answer.aiter_bytes())
    else:
        await leave_while_frozen(stand, body, stand.site.victims[f"{frozen}-0"])
    await stand.served()
    await stand.quiet()


async def test_a_prefill_that_is_too_late(stand: Stand) -> None:
    """The client hears of it in time and nobody waits on decode; what decode holds comes free once prefill goes on."""
    body = unseen(stand, 9)
    stand.prefill.freeze()
    try:
        headers = {"x-tandem-mode": stand.mode, "x-prefill-timeout-ms": "1500"}
        answer = await stand.client.post(stand.site.routers[0].url + TEXT, json=body, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "prefill_timeout")
        await until(lambda: has_none(stand, stand.decode))
    finally:
        stand.prefill.thaw()
    await stand.served()
    await stand.quiet()


@pytest.mark.parametrize("mode", [None, "local"])
async def test_what_clients_must_not_send(stand: Stand, mode: str | None) -> None:
    """Stock engines end, or hang, by each of these; here they are taken out."""
    case = stand.site.cases[5]
    half = {"do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "x", "remote_block_ids": [[1]]}
    for smuggled in (
        {"kv_transfer_params": half},
        {"kv_transfer_params": "x", "request_id": "mine"},
        {"ec_transfer_params": half},
        {"vllm_xargs": {"kv_transfer_params": "x", "ec_transfer_params": ["x"]}},
    ):
        assert tokens_of(await stand.post(TEXT, stand.body(case, **smuggled), mode=mode)) == [list(case.answer)]
    await stand.quiet()


async def test_engines_of_two_kinds_in_one_pool(stand: Stand) -> None:
    """Another kind of engine serves the same model: each pair is of one kind, and all requests are answered."""
    wire = Wire()
    alien_prefill, alien_decode = (VllmServer(wire, names=("tiny",), mode=stand.mode, version="0.99") for _ in range(2))
    urls = [await one.start() for one in (alien_prefill, alien_decode)]
    router = stand.site.routers[1]
    argv, router.is_well = router.argv, False
    router.kill()
    router.argv = (*argv, "--prefill", urls[0], "--decode", urls[1], "--prefill-policy", "round_robin")
    router.start()
    try:
        await stand.site.wait_well(router)
        await until(lambda: lists(stand, router, 4))
        case = stand.site.cases[5]
        answers = [await stand.post(TEXT, stand.body(case), router=1) for _ in range(8)]
        own = [one for one in answers if one.json()["choices"][0].get("token_ids") == list(case.answer)]
        alien = [one for one in answers if one.json()["choices"][0]["text"].startswith("kv of")]
        assert len(own) + len(alien) == 8 and own and alien
        assert len(alien_prefill.seen) == len(alien_decode.seen) == len(alien)
    finally:
        router.argv = argv
        await stand.restart(router)
        await asyncio.gather(alien_prefill.stop(), alien_decode.stop())


async def test_prefill_is_killed(stand: Stand) -> None:
    """In the middle of a prompt: an honest error, nobody waits any more, and its next start serves."""
    body = unseen(stand, 10)
    stand.prefill.freeze()
    asked = asyncio.create_task(stand.post(TEXT, body))
    if stand.mode == "push":
        await until(lambda: has_requests(stand, stand.decode))
    else:
        await asyncio.wait({asked}, timeout=0.3)
    stand.prefill.kill()
    answer = await asked
    assert answer.status_code in (502, 503, 504) and answer.json()["error"]["code"]
    await until(lambda: has_none(stand, stand.decode))
    await stand.restart(stand.prefill)
    await stand.served()
    await stand.settle()


async def test_decode_is_killed_and_started_again_on_the_same_address(stand: Stand) -> None:
    """Before its first byte and in the middle of its stream: an honest error; then its next start serves."""
    case = stand.site.cases[2]
    async with stand.stream(stand.body(case, max_tokens=400)) as answer:
        pieces = answer.aiter_bytes()
        first = await anext(pieces)
        stand.decode.freeze()
        early = asyncio.create_task(stand.post(TEXT, stand.body(case)))
        await asyncio.wait({early}, timeout=0.5)
        stand.decode.kill()
        tokens, error, done = (await read_stream(pieces, first)).tokens()
    assert tokens[: len(case.answer)] == list(case.answer)[: len(tokens)]
    assert error and not done
    refused = await early
    assert refused.status_code in (502, 503, 504) and refused.json()["error"]["code"]
    await stand.restart(stand.decode)
    await stand.served()
    await stand.quiet()


async def test_a_router_is_killed(stand: Stand) -> None:
    """What it had open ends, and the other router serves."""
    router = stand.site.routers[1]
    stand.prefill.freeze()
    asked = asyncio.create_task(stand.post(TEXT, unseen(stand, 11), router=1))
    if stand.mode == "push":
        await until(lambda: has_requests(stand, stand.decode))
    else:
        await asyncio.wait({asked}, timeout=0.3)
    router.kill()
    stand.prefill.thaw()
    with pytest.raises(httpx.TransportError):
        await asked
    await stand.restart(router)
    await until(lambda: has_none(stand, stand.decode))
    await stand.served()
    await stand.settle()


def unseen(stand: Stand, token: int) -> dict[str, Any]:
    """A request whose prompt no engine has in its cache: it alone begins with `token`."""
    case = stand.site.cases[-1]
    return stand.body(case, prompt=[token, *case.prompt], **LONG)
