"""Composition root of a shim in front of vLLM; what every shim has comes from `build_kitchen`."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
import socket
import tempfile
import time
from asyncio import Task
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from fastapi import FastAPI

from engine_shim.build_kitchen import (
    Books,
    Kitchen,
    Start,
    identity_of,
    make_desks,
    make_instance,
    open_books,
    start_kitchen,
)
from engine_shim.driver import Driver
from engine_shim.driver.driver import Bench
from engine_shim.driver.handshake import PROTOCOL_VERSION, PeerCard
from engine_shim.engine.port import ModelCard
from engine_shim.engine.vllm.link import VllmLink
from engine_shim.engine.vllm.messages import SchedulerHello, WorkerHello
from engine_shim.engine.vllm.remote_writer import RemoteWriter
from engine_shim.engine.vllm.restarts import Restarts
from engine_shim.engine.vllm.runner import VllmRunner
from engine_shim.engine.vllm.server import VllmServer, Wiring, read_engine_args
from engine_shim.serve.metrics import ShimMetrics
from engine_shim.serve.side_channel import side_channel
from engine_shim.serve.vllm_face import Front, build_vllm_app
from engine_shim.settings import ShimSettings
from router.contract.errors import EngineDown
from router.contract.instance import KVIdentity, Mode, Role
from router.contract.seal import Seal

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class VllmKitchen:
    """A running shim, its HTTP face, and the vLLM behind it."""

    kitchen: Kitchen
    app: FastAPI
    ended: Task[EngineDown]
    """Done once vLLM has ended by itself."""
    server: VllmServer
    link: VllmLink
    folder: str

    async def aclose(self, drain_for_s: float) -> None:
        """Out of the fleet, drained, and vLLM gone."""
        self.ended.cancel()
        await self.kitchen.aclose(drain_for_s)
        await self.server.aclose()
        self.link.close()
        shutil.rmtree(self.folder, ignore_errors=True)


async def open_vllm_kitchen(settings: ShimSettings, listener: socket.socket) -> VllmKitchen:
    """vLLM serves and everything runs, reachable at `listener`.

    Raises:
        BadSettings: arguments for vLLM that the shim sets itself.
        EngineDown: vLLM has ended instead.
        ModelUnusable, MissingDependency: the connector cannot serve this vLLM, model or machine.
        StoreDown: the store was named and does not answer.
    """
    args, role = read_engine_args(settings.engine_args), Role(settings.role)
    start, books = await open_books(settings, listener.getsockname()[1])
    folder = tempfile.mkdtemp(prefix="tandem-vllm-")
    wiring = Wiring(folder, secrets.token_hex(16), _early_identity(start))
    link = VllmLink(wiring.link_path, listener)
    restarts = Restarts()
    server = await VllmServer.start(args, wiring, role)
    ended = asyncio.create_task(_first_end(server, link))
    try:
        scheduler = await _unless(ended, link.scheduler)
        worker = await _unless(ended, link.worker)
        writer = RemoteWriter(link, start.engine_id, settings.nixl_backend)
        card = await _unless(ended, _open_agent(start, writer, scheduler, worker))
        driver = _make_driver(settings, start, card, scheduler, Desk(link, writer, restarts, books))
        await _unless(ended, server.serves())
        driver.instance = replace(driver.instance, endpoints=await server.endpoints())
    except BaseException:
        ended.cancel()
        await server.aclose()
        link.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    ended.add_done_callback(lambda task: None if task.cancelled() else driver.on_down(task.result()))
    kitchen = start_kitchen(settings, driver, books)
    front = Front(driver, server.client, wiring.secret, restarts, settings, ShimMetrics(driver))
    app = build_vllm_app(front, side_channel(driver, Seal(settings.deployment_key)))
    return VllmKitchen(kitchen, app, ended, server, link, folder)


@dataclass(frozen=True, slots=True)
class Desk:
    """What a Driver in front of vLLM works with."""

    link: VllmLink
    writer: RemoteWriter
    restarts: Restarts
    books: Books


async def _open_agent(start: Start, writer: RemoteWriter, scheduler: SchedulerHello, worker: WorkerHello) -> PeerCard:
    """The agent in vLLM's worker runs. Raises MissingDependency."""
    return PeerCard(
        protocol_version=PROTOCOL_VERSION,
        engine_id=start.engine_id,
        epoch=start.epoch,
        address=start.address,
        compat_hash=_compat_hash(scheduler, worker),
        layout=worker.layout,
        region=worker.region,
        agent_metadata=await writer.start(),
    )


def _make_driver(settings: ShimSettings, start: Start, card: PeerCard, told: SchedulerHello, desk: Desk) -> Driver:
    """It rules the agent and vLLM's blocks."""
    first, *others = told.model.split(",")
    model = ModelCard(first, "vllm", told.max_context_tokens, told.vocab_size, (), told.digest, int(time.time()))
    instance = replace(make_instance(settings, start, model, identity_of(card)), aliases=tuple(others))
    run = partial(VllmRunner, desk.link, desk.restarts)
    driver = Driver(Bench(model, run, None, instance, make_desks(settings, card, desk.writer, desk.books)))
    desk.writer.on_event = driver.on_fabric_event
    return driver


def _early_identity(start: Start) -> KVIdentity:
    """What prefill's answers say of it, before its memory is known."""
    host, port = start.address.host, start.address.port
    return KVIdentity(start.engine_id, host, port, None, "", (Mode.PUSH, Mode.PULL, Mode.LOCAL))


def _compat_hash(scheduler: SchedulerHello, worker: WorkerHello) -> str:
    """Digest of everything that must be equal on prefill and decode. Pages move whole, so their form is part of it."""
    layout = replace(worker.layout, num_blocks=1)
    return hashlib.sha256(repr((PROTOCOL_VERSION, scheduler.digest, layout, worker.page)).encode()).hexdigest()[:32]


async def _first_end(server: VllmServer, link: VllmLink) -> EngineDown:
    """What to say once vLLM has ended, or one of its processes has: its API server alone serves nothing."""
    process, cut = asyncio.create_task(server.ended()), link.cut()
    try:
        done, _ = await asyncio.wait((process, cut), return_when=asyncio.FIRST_COMPLETED)
        return (process if process in done else cut).result()
    finally:
        process.cancel()


# Any: the coroutine's own types do not matter.
async def _unless(ended: Task[EngineDown], wanted: Coroutine[Any, Any, _Result] | asyncio.Future[_Result]) -> _Result:
    """The result of `wanted`. Raises EngineDown as soon as vLLM has ended."""
    task = asyncio.ensure_future(wanted)
    await asyncio.wait((ended, task), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        raise ended.result()
    return task.result()
