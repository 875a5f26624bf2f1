"""The router as a process: its settings, its exit statuses, its end."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from router.bench.mock_behaviour import Behaviour
from router.bench.mock_engine import MockEngine
from router.contract.instance import Role
from tests.support.routers import BODY, PATH, until


async def start(*arguments: str, env: dict[str, str] | None = None) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *arguments, stdout=pipe, stderr=pipe, env=os.environ | (env or {})
    )


async def sentence(*arguments: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    process = await start(*arguments, env=env)
    _, stderr = await process.communicate()
    return process.returncode, stderr.decode().splitlines()[-1]


async def port_of(process: asyncio.subprocess.Process) -> int:
    while line := (await process.stderr.readline()).decode():
        if "listening on" in line:
            return int(line.split("listening on ")[1].split(",")[0].rpartition(":")[2])
    raise AssertionError("it never listened")


async def test_a_taken_port_is_one_sentence_and_status_2():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        status, line = await sentence("--port", port, "--decode", "http://127.0.0.1:1")
    assert status == 2
    assert line.startswith("tandem router: Cannot listen on 127.0.0.1:" + port)


async def test_settings_that_cannot_be_are_one_sentence_and_status_2(tmp_path):
    for arguments, env, start_of_line in [
        ((), {}, "tandem router: Give --store"),
        (("--decode", "x", "--mode", "sideways"), {}, "tandem router: mode must be one of"),
        (("--decode", "x"), {"TANDEM_NEXT_TOKN_S": "1"}, "tandem router: There is no setting 'next_tokn_s'"),
        (("--config", str(tmp_path / "none.yaml")), {}, "tandem router: The settings file"),
        (("--store", "http://x"), {}, "tandem router: The store URL"),
    ]:
        status, line = await sentence("--port", "0", *arguments, env=env)
        assert (status, line[: len(start_of_line)]) == (2, start_of_line)


async def test_help_lists_every_setting_with_its_default():
    process = await start("--help")
    out, _ = await process.communicate()
    text = " ".join(out.decode().split())
    assert process.returncode == 0
    for part in (
        "--next-token-s",
        "Seconds between two tokens (default: 30.0)",
        "--data-path",
        "--prefill",
        "--config",
    ):
        assert part in text


@asynccontextmanager
async def two_engines(behaviour: Behaviour) -> AsyncIterator[tuple[MockEngine, list[str]]]:
    """Decode, which behaves so, and the flags of a router before it and its prefill."""
    prefill, decode = MockEngine(Role.PREFILL, "p0"), MockEngine(Role.DECODE, "d0")
    decode.behaviour = behaviour
    yield decode, ["--port", "0", "--prefill", await prefill.start(), "--decode", await decode.start()]
    await prefill.stop()
    await decode.stop()


@asynccontextmanager
async def client_of(process: asyncio.subprocess.Process) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a router that is ready."""
    port = await port_of(process)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
        while (await client.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.05)
        yield client


async def rest_of_stream_after_sigterm(process: asyncio.subprocess.Process) -> str:
    async with client_of(process) as client, client.stream("POST", PATH, json=BODY | {"stream": True}) as answer:
        process.send_signal(signal.SIGTERM)
        return "".join([piece async for piece in answer.aiter_text()])


async def test_sigterm_lets_a_running_stream_end_and_refuses_new_connections():
    async with two_engines(Behaviour(num_events=20, gap_s=0.03)) as (_, flags):
        process = await start(*flags, "--grace-s", "10")
        assert (await rest_of_stream_after_sigterm(process)).endswith("data: [DONE]\n\n")
        stdout, _ = await process.communicate()
    assert process.returncode == 0
    (line,) = [json.loads(line) for line in stdout.splitlines()]
    assert (line["outcome"], line["stream"], line["prefill"], line["decode"]) == ("served", True, "p0", "d0")
    assert BODY["prompt"] not in stdout.decode().replace("prompt", "")


async def test_after_sigterm_requests_are_served_for_a_while_then_refused_while_streams_end():
    async with two_engines(Behaviour(num_events=60, gap_s=0.05)) as (decode, flags):
        process = await start(*flags, "--pre-stop-s", "0.5", "--access-log", "false")
        async with client_of(process) as client, client.stream("POST", PATH, json=BODY | {"stream": True}) as answer:
            process.send_signal(signal.SIGTERM)
            decode.behaviour = Behaviour()
            while (ready := await client.get("/readyz")).status_code == 200:
                await asyncio.sleep(0.01)
            assert ready.json()["draining"] is True and (await client.get("/healthz")).status_code == 200
            statuses = []
            while not statuses or statuses[-1].status_code == 200:
                statuses.append(await client.post(PATH, json=BODY))
            assert len(statuses) > 1, "it served on"
            refused = statuses[-1]
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert (refused.headers["connection"], refused.headers["retry-after"]) == ("close", "1")
            text = "".join([piece async for piece in answer.aiter_text()])
        assert text.endswith("data: [DONE]\n\n")
        await process.communicate()
    assert process.returncode == 0


async def test_what_outlives_the_grace_ends_with_an_error():
    async with two_engines(Behaviour(num_events=10_000, gap_s=0.05)) as (decode, flags):
        process = await start(*flags, "--grace-s", "1")
        text = await rest_of_stream_after_sigterm(process)
        assert json.loads(text.split("data: ")[-1])["error"]["code"] == "draining"
        assert await process.wait() == 0
        await until(lambda: decode.num_open == 0)
