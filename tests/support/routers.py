"""A whole router in the test's own event loop, before mock engines on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import httpx

from router.bench.mock_behaviour import Behaviour
from router.bench.mock_engine import MockEngine
from router.build import Parts, build_parts, build_server
from router.contract.instance import Role
from router.process.listeners import listen
from router.settings import Settings, check

PATH = "/v1/completions"
BODY = {"model": "m", "prompt": "hi"}


@dataclass(slots=True)
class Rig:
    """A router and its engines."""

    url: str
    port: int
    parts: Parts
    prefills: list[MockEngine]
    decodes: list[MockEngine]
    client: httpx.AsyncClient = field(init=False)

    @property
    def prefill(self) -> MockEngine:
        return self.prefills[0]

    @property
    def decode(self) -> MockEngine:
        return self.decodes[0]

    @property
    def engines(self) -> list[MockEngine]:
        return [*self.prefills, *self.decodes]

    def behave(self, engine: MockEngine, **changes: object) -> None:
        engine.behaviour = replace(Behaviour(), **changes)

    @property
    def at_rest(self) -> bool:
        """Nothing is on its way anywhere."""
        router = self.parts.router
        burdens = [router.burdens.of(engine.instance.instance_id) for engine in self.engines]
        return (
            not router.live
            and not router.leftovers
            and router.admission.requests == 0
            and router.admission.tokens == 0
            and all(burden.requests == 0 and burden.tokens == 0 for burden in burdens)
            and all(engine.num_open == 0 for engine in self.engines)
        )

    async def come_to_rest(self) -> None:
        """Waits until nothing is on its way; the test's own time limit bounds it."""
        await until(lambda: self.at_rest)


async def until(is_true: Callable[[], bool], within_s: float = 60.0) -> None:
    """Returns once `is_true`, looking again whenever the event loop has turned; fails after `within_s` seconds."""
    async with asyncio.timeout(within_s):
        while not is_true():
            await asyncio.sleep(0.002)


@asynccontextmanager
async def rig(
    num_prefill: int = 1,
    num_decode: int = 1,
    both: int = 0,
    static: bool = True,
    prepare: Callable[[MockEngine], None] = lambda engine: None,
    knowing: Callable[[list[str]], dict[str, object]] = lambda urls: {},
    **changes: object,
) -> AsyncIterator[Rig]:
    """A running router with `changes` to its settings, ready to serve model `m` unless it is not told its engines.

    `prepare` may change an engine before it listens; `knowing` makes more settings of the engines' URLs.
    """
    prefills = [MockEngine(Role.PREFILL, f"p{n}") for n in range(num_prefill)]
    decodes = [MockEngine(Role.DECODE, f"d{n}") for n in range(num_decode)]
    decodes += [MockEngine(Role.BOTH, f"b{n}") for n in range(both)]
    for engine in (*prefills, *decodes):
        prepare(engine)
    urls = [await engine.start() for engine in (*prefills, *decodes)]
    # Probes would leave connections behind that a test does not expect; a busy machine may be slow to accept one.
    settings = Settings(port=0, access_log=False, grace_s=1.0, probe_s=0.0, connect_s=20.0)
    if static:
        settings = replace(settings, prefill=tuple(urls[:num_prefill]), decode=tuple(urls[num_prefill:]))
    settings = check(replace(settings, **changes, **knowing(urls)))
    listener = listen(settings.host, settings.port)
    port = listener.getsockname()[1]
    parts = build_parts(settings)
    server = build_server(settings, parts)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    made = Rig(f"http://127.0.0.1:{port}", port, parts, prefills, decodes)
    try:
        async with httpx.AsyncClient(base_url=made.url, timeout=20.0, verify=False) as client:
            made.client = client
            await until(lambda: server.started or serving.done())
            if static:
                await until(lambda: len(parts.router.fleet.members) == len(made.engines))
            yield made
    finally:
        server.should_exit = True
        await serving
        for engine in made.engines:
            await engine.stop()
