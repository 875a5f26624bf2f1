"""A real set-up for end-to-end tests: shims and routers as processes of their own, by hand-picked pairs."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from router.cli.local_fleet import free_port
from router.cli.processes import Child, Children, Program

HOST = "127.0.0.1"


@dataclass
class Engine:
    """A started shim."""

    name: str
    url: str
    pid: int


@dataclass
class ProcessSite:
    """Starts processes; all of them are gone when the block ends."""

    log_dir: Path
    engines: dict[str, Engine] = field(default_factory=dict)
    routers: dict[str, str] = field(default_factory=dict)
    """URL by name."""

    async def __aenter__(self) -> ProcessSite:
        self.children = Children(self.log_dir)
        self.client = httpx.AsyncClient(timeout=900.0, limits=httpx.Limits(max_connections=None))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.aclose()
        await self.children.aclose()

    async def open_engines(self, **flags_of: str) -> None:
        """Shims by name, with their flags as one string; returns when all are ready."""
        started: dict[str, Child] = {}
        for name, flags in flags_of.items():
            argv = (sys.executable, "-m", "engine_shim", "--host", HOST, "--instance-id", name, *flags.split())
            started[name] = await self.children.start(Program(name, argv, env={"OMP_NUM_THREADS": "1"}))
        for name, child in started.items():
            said = await self.children.guard(_awaited(child.ready))
            self.engines[name] = Engine(name, str(said["url"]), child.process.pid)

    async def open_router(self, name: str, prefill: str, decode: str, *flags: str) -> str:
        """A router over these engines (names separated by commas); returns its URL once it is ready."""
        port = free_port(HOST)
        argv = [sys.executable, "-m", "router", "--host", HOST, "--port", str(port), *flags]
        for role, names in (("--prefill", prefill), ("--decode", decode)):
            for engine in filter(None, names.split(",")):
                argv += [role, self.engines[engine].url]
        await self.children.start(Program(f"router-{name}", tuple(argv)))
        self.routers[name] = f"http://{HOST}:{port}"
        await self.children.guard(self._ready(self.routers[name]))
        return self.routers[name]

    async def _ready(self, url: str) -> None:
        async with asyncio.timeout(120):
            while True:
                try:
                    if (await self.client.get(f"{url}/readyz")).status_code == httpx.codes.OK:
                        return
                except httpx.TransportError:
                    pass
                await asyncio.sleep(0.05)

    async def gauge(self, url: str, name: str) -> float:
        """One metric, summed over its labels."""
        text = (await self.client.get(f"{url}/metrics")).text
        lines = [line for line in text.splitlines() if line.split("{")[0].split(" ")[0] == name]
        assert lines, f"{url} has no metric {name}"
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def wait_quiet(self, within_s: float = 20.0) -> None:
        """Nothing is held anywhere: no pinned block, no live transfer, no open ticket, no request in flight."""
        facts: dict[str, float] = {}
        try:
            async with asyncio.timeout(within_s):
                while True:
                    facts = await self._held()
                    if not any(facts.values()):
                        return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"still held after {within_s} s: {facts}") from None

    async def _held(self) -> dict[str, float]:
        facts = {}
        for name, engine in self.engines.items():
            for what in ("held_blocks", "quarantined_blocks", "live_transfers", "open_tickets", "running_seqs"):
                facts[f"{name} {what}"] = await self.gauge(engine.url, f"tandem_shim_{what}")
        for name, url in self.routers.items():
            facts[f"{name} in flight"] = await self.gauge(url, "tandem_requests_in_flight")
            facts[f"{name} open tickets"] = await self.gauge(url, "tandem_open_tickets")
        return facts


async def _awaited(future: asyncio.Future[Any]) -> Any:
    return await future
