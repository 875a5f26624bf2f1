"""Composition root of a shim around the reference engine; what every shim has comes from `build_kitchen`."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import time
from dataclasses import dataclass, replace
from functools import partial

from fastapi import FastAPI

from engine_shim.build_kitchen import (
    Books,
    Kitchen,
    Start,
    identity_of,
    make_desks,
    make_instance,
    open_books,
    recall_rules,
    start_kitchen,
)
from engine_shim.driver import Driver
from engine_shim.driver.driver import Bench
from engine_shim.driver.hand_over import Desks
from engine_shim.driver.handshake import PROTOCOL_VERSION, PeerCard
from engine_shim.engine.port import Engine
from engine_shim.engine.ranks.opening import open_ranked_engine
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.engine.reference.opening import open_engine
from engine_shim.engine.reference.settings import ExpertTransport, Numerics, ReferenceSettings
from engine_shim.engine.thread import EngineThread
from engine_shim.experts.shape import ExpertNumerics
from engine_shim.fabric.copier import open_ring
from engine_shim.fabric.mapping import open_mapper
from engine_shim.fabric.nixl import NixlFabric
from engine_shim.fabric.port import Fabric
from engine_shim.fabric.ring import make_ring
from engine_shim.fabric.staged import StagedFabric, Staging
from engine_shim.fabric.writer import FabricEvent, WriterThread
from engine_shim.serve.app import build_app
from engine_shim.serve.side_channel import side_channel
from engine_shim.settings import ShimSettings
from engine_shim.step_gate import StepGate
from engine_shim.visible_gpus import see_only
from router.contract.gpus import gpu_numbers
from router.contract.ids import EngineId
from router.contract.kv import KVOrder, Region
from router.contract.seal import Seal

ENDPOINTS = ("/tokenize", "/detokenize")
"""What the reference shim serves beside completions; a router passes on only what an instance says it has."""


def load_engine(settings: ShimSettings) -> ReferenceEngine:
    """The engine, with its weights in memory, here or in ranks. Raises ModelUnusable, BadSettings or RankGone."""
    opening = open_engine if settings.ep == 1 else open_ranked_engine
    gpus = gpu_numbers(settings.devices)
    if gpus:
        see_only(gpus, os.environ)
    return opening(
        ReferenceSettings(
            model=settings.model,
            name=settings.model_name,
            dtype=settings.dtype,
            device=settings.device,
            num_gpus=len(gpus),
            block_tokens=settings.block_tokens,
            kv_bytes=settings.kv_bytes,
            kv_order=KVOrder(settings.kv_order),
            max_num_seqs=settings.max_num_seqs,
            max_batch_tokens=settings.max_batch_tokens,
            max_context_tokens=settings.max_context_tokens,
            numerics=Numerics(settings.numerics),
            num_threads=settings.threads,
            prefix_cache=settings.prefix_cache,
            cuda_graphs=settings.cuda_graphs,
            num_ranks=settings.ep,
            expert_numerics=ExpertNumerics(settings.expert_numerics),
            expert_transport=ExpertTransport(settings.expert_transport),
            expert_kernels=settings.expert_kernels,
            expert_wait_for_s=settings.expert_wait_for_s,
            expert_overlap=settings.expert_overlap,
            seed=settings.seed,
        )
    )


@dataclass(frozen=True, slots=True)
class ReferenceShim:
    """A running shim and its HTTP face."""

    kitchen: Kitchen
    app: FastAPI
    engine: ReferenceEngine

    async def aclose(self, drain_for_s: float) -> None:
        """Out of the fleet, drained, and gone."""
        await self.kitchen.aclose(drain_for_s)
        self.engine.close()


async def open_reference(settings: ShimSettings, engine: ReferenceEngine, listener: socket.socket) -> ReferenceShim:
    """As `open_kitchen`, with the HTTP face that `listener` is to serve."""
    kitchen = await open_kitchen(settings, engine, listener.getsockname()[1])
    routes = side_channel(kitchen.driver, Seal(settings.deployment_key))
    app = build_app(kitchen.driver, side_channel=routes, settings=settings)
    return ReferenceShim(kitchen, app, engine)


async def open_kitchen(settings: ShimSettings, engine: ReferenceEngine, port: int) -> Kitchen:
    """Everything runs and the instance is in the fleet, reachable at `port`.

    Raises:
        MissingDependency: NIXL or the wanted backend is not there.
        StoreDown: the store was named and does not answer.
    """
    start, books = await open_books(settings, port)
    holder: list[Driver] = []
    gate = StepGate() if settings.post_between_steps else None
    fabric = _FabricParts(engine, start, holder, gate)
    desks = None if settings.fabric == "none" else await _open_desks(settings, fabric, books)
    kv = None if desks is None else identity_of(desks.peers.card)
    driver = Driver(
        Bench(
            card=engine.card,
            run_engine=partial(EngineThread, engine, gate=gate),
            tokenizer=engine.tokenizer,
            instance=replace(
                make_instance(settings, start, engine.card, kv, lacks=("beam_search",)), endpoints=ENDPOINTS
            ),
            desks=desks,
            scratch=engine,
            recall=recall_rules(settings),
        )
    )
    holder.append(driver)
    return start_kitchen(settings, driver, books)


@dataclass(frozen=True, slots=True)
class _FabricParts:
    """What a fabric's thread works with."""

    engine: Engine
    start: Start
    holder: list[Driver]
    """Gets the Driver once there is one; events go to it."""
    gate: StepGate | None


async def _open_desks(settings: ShimSettings, parts: _FabricParts, books: Books) -> Desks:
    """The writer thread with its agent, and all desks."""
    engine, start = parts.engine, parts.start

    def on_event(event: FabricEvent) -> None:
        parts.holder[0].on_fabric_event(event)

    seal = Seal(settings.deployment_key)
    writer = WriterThread(
        lambda: _open_fabric(settings, start.engine_id, engine.region, seal),
        asyncio.get_running_loop(),
        on_event,
        gate=parts.gate,
    )
    card = PeerCard(
        protocol_version=PROTOCOL_VERSION,
        engine_id=start.engine_id,
        epoch=start.epoch,
        address=start.address,
        compat_hash=compat_hash(engine),
        layout=engine.layout,
        region=engine.region,
        agent_metadata=await writer.start(),
    )
    return make_desks(settings, card, writer, books)


def _open_fabric(settings: ShimSettings, engine_id: EngineId, region: Region, seal: Seal) -> Fabric:
    """An agent that understands peers that stage, and stages itself if it may."""
    ring = None
    if settings.staging_bytes:
        ring = make_ring(*open_ring(region, settings.staging_bytes), time.monotonic, open_mapper(region))
    inner = NixlFabric(engine_id, region, settings.nixl_backend, ring.card.region if ring is not None else None)
    return StagedFabric(engine_id, region, inner, Staging(ring, seal))


def compat_hash(engine: Engine) -> str:
    """Digest of everything that must be equal on prefill and decode; block size and order may differ."""
    layout = engine.layout
    facts = (
        PROTOCOL_VERSION,
        engine.card.family,
        engine.card.weights_digest,
        layout.num_layers,
        layout.all_kv_heads,
        layout.head_dim,
        layout.dtype,
        layout.latent,
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
