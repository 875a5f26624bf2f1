"""What every shim has, whatever its engine: its start, its books in the store, its desks, its place in the fleet."""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import Task
from collections.abc import Sequence
from dataclasses import dataclass

from engine_shim.core.fates import Address, FateClocks, FateDesk
from engine_shim.core.layerwise import layers_pay
from engine_shim.core.push import PushLimits
from engine_shim.core.rendezvous import PrefillClocks, PrefillDesk
from engine_shim.core.seats import DecodeClocks, SeatDesk
from engine_shim.driver import Driver
from engine_shim.driver.hand_over import Desks, KVFailure
from engine_shim.driver.handshake import Caller, PeerCard
from engine_shim.driver.membership import Beat, Membership
from engine_shim.driver.peers import Peers
from engine_shim.driver.recall import RecallRules
from engine_shim.engine.port import ModelCard
from engine_shim.fabric.writer import Writer
from engine_shim.settings import ShimSettings
from router.contract.errors import StoreDown
from router.contract.ids import EngineId, Epoch, InstanceId, engine_id_of
from router.contract.instance import Instance, KVIdentity, Mode, Role
from router.contract.kv import KVLayout
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


@dataclass(frozen=True, slots=True)
class Start:
    """This start of this instance."""

    instance_id: InstanceId
    epoch: Epoch
    address: Address

    @property
    def engine_id(self) -> EngineId:
        """Its own name."""
        return engine_id_of(self.instance_id, self.epoch)


@dataclass(frozen=True, slots=True)
class Books:
    """What this start keeps in the store; all None where there is none."""

    redis: StoreClient | None
    store: FleetStore | None
    ledger: Ledger | None

    def post(self, entry: Entry) -> None:
        """For the ledger."""
        if self.ledger is not None:
            self.ledger.post(entry)


async def open_books(settings: ShimSettings, port: int) -> tuple[Start, Books]:
    """This start, with an epoch of its own. Raises StoreDown when the store was named and does not answer."""
    redis = connect(settings.store) if settings.store else None
    store = FleetStore(redis, settings.namespace) if redis is not None else None
    host = settings.advertise_host or settings.host
    instance_id = InstanceId(settings.instance_id or f"{settings.role}-{host}-{port}")
    start = Start(instance_id, await _claim_epoch(store, instance_id), Address(host, port))
    ledger = Ledger(redis, settings.namespace, start.engine_id) if redis is not None else None
    return start, Books(redis, store, ledger)


def make_desks(settings: ShimSettings, card: PeerCard, writer: Writer, books: Books) -> Desks:
    """All desks of one start; `writer` has been started and owns the fabric."""
    seal, limits = Seal(settings.deployment_key), push_limits(settings, card.layout)
    return Desks(
        peers=Peers(card, writer, Caller(seal), FateDesk(FateClocks())),
        writer=writer,
        seal=seal,
        prefill=PrefillDesk(PrefillClocks(settings.lease_for_s, settings.seat_wait_for_s), limits),
        decode=SeatDesk(card.engine_id, DecodeClocks(settings.kv_wait_for_s, settings.registration_for_s)),
        on_walked=lambda walked: books.post(Arrived(walked.transfer_id, walked.arrival, walked.note)),
        on_noted=lambda transfer_id, stage: books.post(Noted(transfer_id, stage)),
        progressive=settings.progressive,
        layers_from_tokens=limits.least_tokens if limits.num_layers else 0,
        kv_failure=KVFailure(settings.kv_failure),
        on_recompute=lambda transfer_id, error: books.post(Noted(transfer_id, "recompute", error.code)),
    )


def recall_rules(settings: ShimSettings) -> RecallRules | None:
    """When KV comes back from decode, by these settings; None: never."""
    if not settings.recall_least_tokens or not settings.prefix_cache:
        return None  # what has come back, and what is kept, is in the prefix cache
    return RecallRules(settings.recall_least_tokens, settings.recall_wait_for_s)


def push_limits(settings: ShimSettings, layout: KVLayout) -> PushLimits:
    """How pushes from a cache of this layout are cut: as set, or not at all."""
    if not settings.progressive:
        return PushLimits(layout.block_tokens)
    token_bytes = layout.block_bytes // layout.block_tokens
    most_tokens = settings.push_most_bytes // token_bytes
    in_layers = settings.layerwise and layers_pay(
        layout, gathers=settings.staging_bytes > 0, on_host=settings.device == "cpu"
    )
    num_layers = layout.num_layers if in_layers else 0
    return PushLimits(layout.block_tokens, settings.push_least_tokens, most_tokens, num_layers=num_layers)


def identity_of(card: PeerCard) -> KVIdentity:
    """What the fleet and prefill's answers tell of the engine with this card."""
    return KVIdentity(
        engine_id=card.engine_id,
        side_channel_host=card.address.host,
        side_channel_port=card.address.port,
        layout=card.layout,
        compat_hash=card.compat_hash,
        modes=(Mode.PUSH, Mode.PULL, Mode.LOCAL),
        takes_back=True,
    )


def make_instance(
    settings: ShimSettings, start: Start, model: ModelCard, kv: KVIdentity | None, lacks: Sequence[str] = ()
) -> Instance:
    """This start as the fleet lists it."""
    return Instance(
        instance_id=start.instance_id,
        role=Role(settings.role),
        epoch=start.epoch,
        url=f"http://{start.address}",
        model=model.name,
        max_context_tokens=model.max_context_tokens,
        kv=kv,
        lacks=tuple(lacks),
    )


def start_kitchen(settings: ShimSettings, driver: Driver, books: Books) -> Kitchen:
    """The Driver runs; its Membership has yet to join."""
    driver.start()
    flushing = asyncio.create_task(books.ledger.run()) if books.ledger is not None else None
    membership = None
    if books.store is not None:
        membership = Membership(books.store, driver, Beat(settings.heartbeat_every_s, settings.fleet_lease_for_s))
    return Kitchen(driver, membership, books.ledger, flushing, books.redis)


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
