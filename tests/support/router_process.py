"""A router in a process of its own, to be killed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx


@dataclass(slots=True)
class RouterProcess:
    """A started router."""

    process: asyncio.subprocess.Process
    client: httpx.AsyncClient

    async def kill(self) -> None:
        """It is gone without a word."""
        self.process.kill()
        await self.process.wait()

    async def gauge(self, name: str) -> float:
        """One metric, summed over its labels."""
        text = (await self.client.get("/metrics")).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


@asynccontextmanager
async def router_process(*flags: str, env: dict[str, str] | None = None) -> AsyncIterator[RouterProcess]:
    """Inside, a router with these flags is ready to serve; it has ended afterwards, whatever became of it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "--port", "0", "--access-log", "false", *flags),
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | (env or {}),
    )
    draining = None
    try:
        port = await _port_of(process)
        draining = asyncio.create_task(_read_all(process))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30.0) as client:
            while (await client.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.02)
            yield RouterProcess(process, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if draining is not None:
            await draining


async def _port_of(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        if "listening on" in line:
            return int(line.split("listening on ")[1].split(",")[0].rpartition(":")[2])
    raise AssertionError("it never listened")


async def _read_all(process: asyncio.subprocess.Process) -> None:
    assert process.stderr is not None
    while await process.stderr.read(65536):
        pass
