"""Several workers behind one port, seen from outside."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import psutil

from router.bench.mock_behaviour import Behaviour
from router.bench.mock_engine import MockEngine
from router.contract.instance import Role
from tests.support.routers import BODY, PATH

NUM_STREAMS = 16


@dataclass(slots=True)
class Site:
    process: asyncio.subprocess.Process
    url: str
    decode: MockEngine
    workers: list[int] = field(default_factory=list)
    """Process ids, in order of their start."""

    async def served(self) -> int:
        """Requests that any worker says all have served."""
        async with httpx.AsyncClient(base_url=self.url, timeout=30) as client:
            text = (await client.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("tandem_requests_total{")]
        return sum(int(float(line.rpartition(" ")[2])) for line in lines if 'outcome="served"' in line)

    async def until_served(self, count: int) -> None:
        while await self.served() != count:
            await asyncio.sleep(0.05)


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    prefill, decode = MockEngine(Role.PREFILL, "p0"), MockEngine(Role.DECODE, "d0")
    urls = [await prefill.start(), await decode.start()]
    flags = ("--port", "0", "--workers", "2", "--prefill", urls[0], "--decode", urls[1])
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "router", *flags, stdout=pipe, stderr=pipe)
    made = Site(process, "", decode)
    reading = asyncio.create_task(read(made))
    try:
        while not made.url or len(made.workers) < 2:
            await asyncio.sleep(0.01)
        for pid in made.workers:  # each has its own connection, for the kernel chooses by the client's port
            await until_listening(made, pid)
        yield made
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading
        await prefill.stop()
        await decode.stop()


async def read(made: Site) -> None:
    while line := (await made.process.stderr.readline()).decode():
        if "listening on" in line:
            made.url = "http://" + line.split("listening on ")[1].split(",")[0]
        elif "runs as process" in line:
            made.workers.append(int(line.split()[-1]))


async def until_listening(made: Site, pid: int) -> None:
    """A request has been answered by this worker, so it knows its engines."""
    while True:
        async with httpx.AsyncClient(base_url=made.url, timeout=30) as client:
            ready = (await client.get("/readyz")).status_code == 200
            if ready and pid in holders(made):
                return
        await asyncio.sleep(0.02)


def holders(made: Site) -> list[int]:
    """The workers that have connections of clients of ours."""
    port = int(made.url.rpartition(":")[2])
    return [
        pid
        for pid in made.workers
        if psutil.pid_exists(pid)
        for one in psutil.Process(pid).net_connections("tcp")
        if one.status == "ESTABLISHED" and one.laddr.port == port
    ]


async def stream(url: str) -> bool:
    """True when the answer has come to its end."""
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=30) as client,
            client.stream("POST", PATH, json=BODY | {"stream": True}) as answer,
        ):
            return "".join([piece async for piece in answer.aiter_text()]).endswith("data: [DONE]\n\n")
    except httpx.TransportError:
        return False


async def test_a_killed_worker_takes_only_its_own_streams_and_no_figure_with_it():
    async with site() as made:
        assert all(await asyncio.gather(*(stream(made.url) for _ in range(NUM_STREAMS))))
        await made.until_served(NUM_STREAMS)

        made.decode.behaviour = Behaviour(num_events=10_000, gap_s=0.02)
        running = [asyncio.create_task(stream(made.url)) for _ in range(NUM_STREAMS)]
        while made.decode.num_open < NUM_STREAMS:
            await asyncio.sleep(0.01)
        victim = made.workers[0]
        num_lost = holders(made).count(victim)
        os.kill(victim, signal.SIGKILL)
        while sum(one.done() for one in running) < num_lost or len(made.workers) < 3:
            await asyncio.sleep(0.01)
        assert sum(one.done() for one in running) == num_lost

        made.decode.behaviour = Behaviour()
        await until_listening(made, made.workers[2])
        assert all([await stream(made.url) for _ in range(8)])
        async with httpx.AsyncClient(base_url=made.url, timeout=30) as client:
            assert (await client.get("/readyz")).json()["workers"] == 2
            told = (await client.get("/admin/requests", params={"limit": 8})).json()["requests"]
            assert len({one["request_id"] for one in told}) == 8, "whichever of the two has served them"
        await made.until_served(NUM_STREAMS + 8)
        assert sum(one.done() for one in running) == num_lost
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_sigterm_ends_all_workers_in_order_and_every_line_is_whole():
    async with site() as made:
        made.decode.behaviour = Behaviour(num_events=20, gap_s=0.02)
        running = [asyncio.create_task(stream(made.url)) for _ in range(NUM_STREAMS)]
        while made.decode.num_open < NUM_STREAMS:
            await asyncio.sleep(0.01)
        made.process.send_signal(signal.SIGTERM)
        assert all(await asyncio.gather(*running))
        lines = (await made.process.stdout.read()).splitlines()
        assert await made.process.wait() == 0
        assert [json.loads(line)["outcome"] for line in lines] == ["served"] * NUM_STREAMS
        assert not any(psutil.pid_exists(pid) for pid in made.workers)


async def test_settings_that_no_worker_can_use_are_one_status():
    flags = ("--port", "0", "--workers", "2", "--store", "http://x")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *flags, stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert "tandem router: The store URL" in stderr.decode()
