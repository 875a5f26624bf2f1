"""A whole set-up on this machine: started, ready, stopped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import httpx

from router.cli.processes import Child, Children
from router.cli.setup import SetUp, engine_programs, router_program
from router.contract.errors import RouterError, StoreDown
from router.store.embedded import EmbeddedStore

ROUTER_WITHIN_S = 60.0
"""How long the router may take to be ready once all engines are."""
_POLL_S = 0.05

Announce = Callable[[str, str], None]
"""Called with (phase, what is true since then)."""


class LocalFleet:
    """The processes of one SetUp. `start` it, do your work under `guard`, then `aclose` it, whatever happened."""

    def __init__(self, setup: SetUp, log_dir: Path) -> None:
        """Nothing runs yet. Logs go to `log_dir`."""
        self.setup = setup
        self.url = setup.url
        self.children = Children(log_dir)
        self.store_url = "" if setup.store in ("embedded", "none") else setup.store
        """Known once started."""
        self.model = ""
        """Served name; known once started."""
        self._store: EmbeddedStore | None = None

    async def start(self, announce: Announce) -> None:
        """Return when the router reports ready and every engine has said so.

        Raises:
            DeploymentError: a process refused its settings.
            TandemError: a process died; its last log lines.
        """
        await self.children.guard(self._start(announce))

    async def _start(self, announce: Announce) -> None:
        if self.setup.store == "embedded":
            self._start_store()
        announce("store", self.store_url or "none")
        engines = [await self.children.start(program) for program in engine_programs(self.setup, self.store_url)]
        if self.store_url:
            await self.children.start(router_program(self.setup, self.store_url))
        urls = await asyncio.gather(*(self._engine_ready(engine, announce) for engine in engines))
        if not self.store_url:
            await self.children.start(router_program(self.setup, "", urls))
        await self._router_ready(set(urls))
        announce("router", self.url)

    def _start_store(self) -> None:
        self._store = EmbeddedStore()
        self._store.start()  # in this thread: its death signal follows the thread that started it
        self.children.adopt("store", self._store.pid, StoreDown)
        self.store_url = self._store.url

    async def _engine_ready(self, engine: Child, announce: Announce) -> str:
        url = str((await engine.ready)["url"])
        announce(engine.program.name, url)
        return url

    async def _router_ready(self, urls: set[str]) -> None:
        """Return when the router can place requests on every one of `urls`."""
        async with httpx.AsyncClient(base_url=self.url, timeout=2.0) as client:
            end_at = asyncio.get_running_loop().time() + ROUTER_WITHIN_S
            while not urls <= (models := await _models_by_url(client)).keys():
                if asyncio.get_running_loop().time() > end_at:
                    raise RouterError(
                        f"The router at {self.url} does not find all engines within {ROUTER_WITHIN_S:g} s of their "
                        "start; read its log, and the engines' for a lost store."
                    )
                await asyncio.sleep(_POLL_S)
        self.model = next(model for url, model in models.items() if url in urls)

    async def aclose(self, grace_s: float = 10.0) -> None:
        """Stop everything; no process of this set-up is left."""
        await self.children.aclose(grace_s)
        if self._store is not None:
            self._store.stop()
            self._store = None


async def _models_by_url(client: httpx.AsyncClient) -> dict[str, str]:
    """The served model of each instance that the router knows; empty while it is not ready."""
    try:
        if (await client.get("/readyz")).status_code != httpx.codes.OK:
            return {}
        instances = (await client.get("/admin/fleet")).json()["instances"]
    except httpx.TransportError:
        return {}
    return {instance["url"]: instance["model"] for instance in instances}


def free_port(host: str) -> int:
    """Return a port on `host` that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
    return port
