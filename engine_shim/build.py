"""Composition root of the shim: the only file that names concrete classes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from asyncio import Task
from dataclasses import dataclass

from engine_shim.core.fates import Address, FateClocks, FateDesk
from engine_shim.core.rendezvous import PrefillClocks, PrefillDesk
from engine_shim.core.seats import DecodeClocks, SeatDesk
from engine_shim.driver import Driver
from engine_shim.driver.driver import Bench
from engine_shim.driver.hand_over import Desks, KVFailure
from engine_shim.driver.handshake import PROTOCOL_VERSION, Caller, PeerCard
from engine_shim.driver.membership import Beat, Membership
from engine_shim.driver.peers import Peers
from engine_shim.engine.port import Engine
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.engine.reference.opening import open_engine
from engine_shim.engine.reference.settings import Numerics, ReferenceSettings
from engine_shim.fabric.copier import open_ring
from engine_shim.fabric.nixl import NixlFabric
from engine_shim.fabric.port import Fabric
from engine_shim.fabric.ring import make_ring
from engine_shim.fabric.staged import StagedFabric, Staging
from engine_shim.fabric.writer import FabricEvent, WriterThread
from engine_shim.settings import ShimSettings
from router.contract.errors import StoreDown
from router.contract.ids import EngineId, Epoch, InstanceId, engine_id_of
from router.contract.instance import Instance, KVIdentity, Mode, Role
from router.contract.kv import KVOrder, Region
from router.contract.ledger import Arrived, Entry, Noted
from router.contract.seal import Seal
from router.store.connection import StoreClient, connect
from router.store.fleet import FleetStore
from router.store.ledger import Ledger

log = logging.getLogger("tandem.shim")

STORE_WAIT_S = 10.0
"""A start gives a store that does not answer so long to come back."""


@dataclass(frozen=True, slots=True)
class Kitchen:
    """A running shim without its HTTP face."""

    driver: Driver
    membership: Membership | None
    ledger: Ledger | None
    flushing: Task[None] | None
    """The ledger's own task."""
    redis: StoreClient | None

    async def aclose(self, drain_for_s: float) -> None:
        """Out of the fleet first, then drained, then gone."""
        if self.membership is not None:
            await self.membership.leave()
        await self.driver.aclose(drain_for_s)
        if self.ledger is not None and self.flushing is not None:
            await self.ledger.aclose()
            self.flushing.cancel()
        if self.redis is not None:
            await self.redis.aclose()


def load_engine(settings: ShimSettings) -> ReferenceEngine:
    """The engine, with its weights in memory. Raises ModelUnusable."""
    return open_engine(
        ReferenceSettings(
            model=settings.model,
            name=settings.model_name,
            dtype=settings.dtype,
            device=settings.device,
            block_tokens=settings.block_tokens,
            kv_bytes=settings.kv_bytes,
            kv_order=KVOrder(settings.kv_order),
            max_num_seqs=settings.max_num_seqs,
            max_batch_tokens=settings.max_batch_tokens,
            max_context_tokens=settings.max_context_tokens,
            numerics=Numerics(settings.numerics),
            num_threads=settings.threads,
            prefix_cache=settings.prefix_cache,
            seed=settings.seed,
        )
    )


async def open_kitchen(settings: ShimSettings, engine: ReferenceEngine, port: int) -> Kitchen:
    """Everything runs and the instance is in the fleet, reachable at `port`.

    Raises:
        MissingDependency: NIXL or the wanted backend is not there.
        StoreDown: the store was named and does not answer.
    """
    redis = connect(settings.store) if settings.store else None
    store = FleetStore(redis, settings.namespace) if redis is not None else None
    host = settings.advertise_host or settings.host
    instance_id = InstanceId(settings.instance_id or f"{settings.role}-{host}-{port}")
    epoch = await _claim_epoch(store, instance_id)
    engine_id = engine_id_of(instance_id, epoch)
    ledger = Ledger(redis, settings.namespace, engine_id) if redis is not None else None

    holder: list[Driver] = []
    desks = None
    if settings.fabric != "none":
        desks = await _open_desks(settings, engine, _Start(engine_id, epoch, Address(host, port)), holder, ledger)
    driver = Driver(
        Bench(
            engine=engine,
            tokenizer=engine.tokenizer,
            instance=_instance(settings, engine, (instance_id, epoch), Address(host, port), desks),
            desks=desks,
        )
    )
    holder.append(driver)
    driver.start()
    flushing = asyncio.create_task(ledger.run()) if ledger is not None else None
    membership = None
    if store is not None:
        membership = Membership(store, driver, Beat(settings.heartbeat_every_s, settings.fleet_lease_for_s))
    return Kitchen(driver, membership, ledger, flushing, redis)


async def _claim_epoch(store: FleetStore | None, instance_id: InstanceId) -> Epoch:
    """This start's epoch. A store that is just failing over is waited for. Raises StoreDown."""
    if store is None:
        return Epoch(time.time_ns() // 1_000_000)
    ends_at = time.monotonic() + STORE_WAIT_S
    while True:
        try:
            return await store.claim_epoch(instance_id)
        except StoreDown as error:
            if time.monotonic() > ends_at:
                raise
            log.warning("%s Trying again.", error.message)
            await asyncio.sleep(0.5)


@dataclass(frozen=True, slots=True)
class _Start:
    """This start of this instance."""

    engine_id: EngineId
    epoch: Epoch
    address: Address


async def _open_desks(
    settings: ShimSettings, engine: Engine, start: _Start, holder: list[Driver], ledger: Ledger | None
) -> Desks:
    """The writer thread with its agent, and all desks; events go to the Driver once it is in `holder`."""

    def on_event(event: FabricEvent) -> None:
        holder[0].on_fabric_event(event)

    seal = Seal(settings.deployment_key)
    writer = WriterThread(
        lambda: _open_fabric(settings, start.engine_id, engine.region, seal), asyncio.get_running_loop(), on_event
    )
    metadata = await writer.start()
    card = PeerCard(
        protocol_version=PROTOCOL_VERSION,
        engine_id=start.engine_id,
        epoch=start.epoch,
        address=start.address,
        compat_hash=compat_hash(engine),
        layout=engine.layout,
        region=engine.region,
        agent_metadata=metadata,
    )
    return Desks(
        peers=Peers(card, writer, Caller(seal), FateDesk(FateClocks())),
        writer=writer,
        seal=seal,
        prefill=PrefillDesk(PrefillClocks(settings.lease_for_s, settings.seat_wait_for_s)),
        decode=SeatDesk(start.engine_id, DecodeClocks(settings.kv_wait_for_s)),
        on_walked=lambda walked: _post(ledger, Arrived(walked.transfer_id, walked.arrival, walked.note)),
        kv_failure=KVFailure(settings.kv_failure),
        on_recompute=lambda transfer_id, error: _post(ledger, Noted(transfer_id, "recompute", error.code)),
    )


def _open_fabric(settings: ShimSettings, engine_id: EngineId, region: Region, seal: Seal) -> Fabric:
    """An agent that understands peers that stage, and stages itself if it may."""
    ring = make_ring(*open_ring(region, settings.staging_bytes), time.monotonic) if settings.staging_bytes else None
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
        layout.num_kv_heads,
        layout.head_dim,
        layout.dtype,
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _instance(
    settings: ShimSettings, engine: Engine, start: tuple[InstanceId, Epoch], address: Address, desks: Desks | None
) -> Instance:
    instance_id, epoch = start
    kv = None
    if desks is not None:
        card = desks.peers.card
        kv = KVIdentity(
            engine_id=card.engine_id,
            side_channel_host=address.host,
            side_channel_port=address.port,
            layout=engine.layout,
            compat_hash=card.compat_hash,
            modes=(Mode.PUSH, Mode.PULL, Mode.LOCAL),
            takes_back=True,
        )
    return Instance(
        instance_id=instance_id,
        role=Role(settings.role),
        epoch=epoch,
        url=f"http://{address}",
        model=engine.card.name,
        max_context_tokens=engine.card.max_context_tokens,
        kv=kv,
        lacks=("beam_search",),
    )


def _post(ledger: Ledger | None, entry: Entry) -> None:
    if ledger is not None:
        ledger.post(entry)
