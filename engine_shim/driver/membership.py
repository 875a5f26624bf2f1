"""Membership: this instance's place in the fleet, kept by heartbeats, and a look at who else is there.

The look serves two ends: handshakes are made before the first request needs them, and a peer that the fleet no longer
lists is called, so that its death is noticed although nobody has anything to say to it just now. With the store away,
serving goes on; only placement ages.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from dataclasses import dataclass

from engine_shim.core.fates import Address
from engine_shim.driver.driver import Driver
from router.contract.errors import StoreDown, TransferError
from router.contract.ids import EngineId
from router.contract.instance import Instance, KVIdentity
from router.store.fleet import FleetStore

log = logging.getLogger("tandem.shim")


@dataclass(frozen=True, slots=True)
class Beat:
    """How often and how long, seconds."""

    every_s: float = 1.0
    lease_for_s: float = 5.0


class Membership:
    """Registers, heartbeats, and introduces this shim to its partners."""

    def __init__(self, store: FleetStore, driver: Driver, beat: Beat) -> None:
        self._store = store
        self._driver = driver
        self._beat = beat
        self._task: Task[None] | None = None
        self._greeting: dict[EngineId, Task[None]] = {}
        self._down = self._broken = False
        self._leaving = False

    async def join(self) -> None:
        """The instance is in the fleet, or will be as soon as the store answers."""
        try:
            await self._store.register(self._driver.instance, self._beat.lease_for_s)
        except StoreDown as error:
            log.warning("%s The instance joins the fleet when it is back.", error.message)
        self._task = asyncio.create_task(self._run())

    async def leave(self) -> None:
        """The instance is out of the fleet, or the store is away and its lease will end by itself."""
        self._leaving = True
        if self._task is not None:
            self._task.cancel()
            # A heartbeat that is under way would bring the instance back, and asyncio.wait_for, under which the store's
            # client sends, may forget the cancellation until Python 3.12.
            await asyncio.wait((self._task,))
        for greeting in list(self._greeting.values()):
            greeting.cancel()
        instance = self._driver.instance
        try:
            await self._store.leave(instance.instance_id, instance.epoch)
        except StoreDown as error:
            log.warning("%s The lease of %s will end by itself.", error.message, instance.instance_id)

    async def _run(self) -> None:
        while not self._leaving:
            try:
                await self._heartbeat()
                self._meet(tuple(record.instance for record in await self._store.snapshot()))
                if self._down:
                    log.info("The store answers again.")
                self._down = self._broken = False
            except StoreDown as error:
                if not self._down:
                    log.warning("%s Serving goes on.", error.message)
                self._down = True
            except Exception:  # the boundary of this task: the fleet would lose this instance by one bad value
                if not self._broken:
                    log.exception("A look at the fleet fails by a bug; heartbeats go on.")
                self._broken = True
            if not self._leaving:
                await asyncio.sleep(self._beat.every_s)

    async def _heartbeat(self) -> None:
        instance, load, lease = self._driver.instance, self._driver.load(), self._beat.lease_for_s
        if await self._store.heartbeat(instance.instance_id, instance.epoch, load, lease):
            return
        if not await self._store.register(instance, lease):
            log.error("A newer start of %s has taken its place; this one serves no new requests.", instance.instance_id)
            self._driver.ready = False

    def _meet(self, fleet: tuple[Instance, ...]) -> None:
        """Greet new partners; doubt peers that the fleet does not list (any more)."""
        if self._driver.hand_over is None:
            return
        peers = self._driver.hand_over.peers
        live = {instance.kv.engine_id: instance for instance in fleet if instance.kv is not None}
        for engine_id in peers.known():
            if engine_id not in live:
                peers.on_doubted(engine_id)
        known = set(peers.known()) | {peers.card.engine_id}
        for engine_id, instance in live.items():
            if engine_id not in known and engine_id not in self._greeting and self._partners(instance):
                self._greet(engine_id, instance.kv)

    def _partners(self, other: Instance) -> bool:
        ours = self._driver.instance
        if ours.kv is None or other.kv is None or ours.kv.compat_hash != other.kv.compat_hash:
            return False
        return (ours.role.prefills and other.role.decodes) or (ours.role.decodes and other.role.prefills)

    def _greet(self, engine_id: EngineId, kv: KVIdentity | None) -> None:
        if self._driver.hand_over is None or kv is None:
            return
        peers = self._driver.hand_over.peers

        async def greet() -> None:
            try:
                await peers.ensure(engine_id, Address(kv.side_channel_host, kv.side_channel_port))
                log.info("Met %s.", engine_id)
            except TransferError as error:
                log.warning("%s", error.message)

        task = asyncio.create_task(greet())
        self._greeting[engine_id] = task
        task.add_done_callback(lambda _: self._greeting.pop(engine_id, None))
