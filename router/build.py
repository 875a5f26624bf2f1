"""Build: the one place that names concrete classes and joins them to a running router."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI

from router.api.admin import Console
from router.api.apart import Apart
from router.api.app import Surface, build_app
from router.api.door import Door, DoorLimits
from router.api.front import Front
from router.api.hook import HookProtocol
from router.api.protocol import DoorProtocol
from router.api.security import Security, build_security
from router.api.server import Server
from router.api.watching import Shown
from router.background import Background
from router.build_gauges import gauges
from router.build_router import build_router
from router.build_running import running
from router.build_sharing import build_sharing
from router.core.aliases import read_aliases
from router.core.pulse import PulseRules
from router.core.trace import Sampler
from router.discovery.listings import listings_of
from router.discovery.servers import Servers
from router.driver.orders import OrderPlace
from router.driver.prober import Prober
from router.driver.reaper import Reaper
from router.driver.router import Router
from router.driver.screen import Screen
from router.driver.sharing import Sharing
from router.driver.watch import FleetSource, FleetWatch
from router.governor import Again, Governor
from router.observe.recent import OwnRecords
from router.observe.requestlog import RequestLog
from router.observe.telemetry import Telemetry, Told
from router.observe.tracing import Tracing, build_tracing
from router.placing import build_hints
from router.process.descriptors import make_room
from router.settings import MODES, Settings
from router.store.connection import StoreClient, connect
from router.store.fleet import FleetStore
from router.store.ledger import Ledger
from router.store.orders import OrderStore
from router.store.recovery import Recovery
from router.workers.figures import Figures, Place
from router.workers.lines import LineSink
from router.workers.orders import OrderFile
from router.workers.records import SharedRecords

LOG = logging.getLogger("tandem.router")
_GC_THRESHOLDS = (10_000, 20, 50)
"""Requests make no cycles, so collections find nothing; at the default of 700 they would run every few requests."""


@dataclass(slots=True)
class Parts:
    """What belongs to one router process."""

    router: Router
    watch: FleetWatch
    telemetry: Telemetry
    request_log: RequestLog | None
    redis: StoreClient | None
    ledger: Ledger | None
    servers: Servers | None
    reaper: Reaper | None
    security: Security
    prober: Prober | None
    governor: Governor
    sharing: Sharing | None = None
    """With budgets that hold for all replicas."""
    tracing: Tracing | None = None
    figures: Figures | None = None
    """With several workers: the metrics of all."""
    shared_records: SharedRecords | None = None
    """With several workers: the last requests of all."""
    fleet_store: FleetStore | None = None
    background: Background = field(default_factory=Background)

    @property
    def degraded(self) -> bool:
        """The store, or another source of the fleet, does not answer."""
        writes = self.ledger is not None and self.ledger.degraded
        return self.watch.degraded or writes or (self.sharing is not None and self.sharing.degraded)

    def own_records(self) -> OwnRecords:
        """The last requests of this process."""
        return OwnRecords(self.telemetry.recent, self.router.clerk.work_off)

    def num_workers(self) -> int:
        """Router processes behind this port that are alive."""
        return 1 if self.figures is None else self.figures.num_live

    def render_metrics(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return self.telemetry.render() if self.figures is None else self.figures.render()


def build_parts(settings: Settings, place: Place | None = None) -> Parts:
    """Everything that runs beside the requests. Called on the event loop that will run it."""
    security = build_security(settings)
    router = build_router(settings, security.access)
    request_log = RequestLog(_sink(place), asyncio.get_running_loop().call_later) if settings.access_log else None
    tracing = build_tracing(settings.otlp, router.conduct.owner) if settings.otlp else None
    told: list[Told] = [one.tell for one in (request_log, tracing) if one is not None]
    telemetry = Telemetry(*told)
    redis = connect(settings.store) if settings.store else None
    ledger = Ledger(redis, settings.namespace, router.conduct.owner) if redis is not None else None
    listings = listings_of(settings)
    servers = Servers(listings, router.make_pool) if listings else None
    fleet_store = FleetStore(redis, settings.namespace) if redis is not None else None
    sources: list[FleetSource] = [one for one in (fleet_store, servers) if one is not None]
    router.attach(ledger, telemetry)
    watch = FleetWatch(router, sources, settings.fleet_poll_s, servers, Screen(security.access.hosts))
    reaper = None
    if redis is not None and ledger is not None:
        reaper = Reaper(router, Recovery(redis, settings.namespace), ledger, settings.router_lease_s)
    rules = PulseRules(settings.probe_s, settings.probe_timeout_s, settings.probe_failures, settings.probe_successes)
    prober = Prober(router, rules) if settings.probe_s else None
    orders: OrderPlace | None = OrderStore(redis, settings.namespace) if redis is not None else None
    if orders is None and place is not None:
        orders = OrderFile(place.folder)
    governor = Governor(router, watch, settings, orders)
    parts = Parts(router, watch, telemetry, request_log, redis, ledger, servers, reaper, security, prober, governor)
    parts.tracing, parts.fleet_store = tracing, fleet_store
    if redis is not None and settings.shared_budgets:
        keyring = security.gate.keyring
        parts.sharing = build_sharing(settings, router, redis, keyring.names if keyring is not None else frozenset)
    governor.set_log = functools.partial(_set_log, parts, place)
    telemetry.watch(functools.partial(gauges, parts))
    if place is not None:
        parts.figures = Figures(place, telemetry.collect)
        parts.shared_records = SharedRecords(parts.own_records(), place)
    return parts


def _set_log(parts: Parts, place: Place | None, wanted: bool) -> None:
    if parts.request_log is None:
        parts.request_log = RequestLog(_sink(place), asyncio.get_running_loop().call_later)
    parts.telemetry.tell(parts.request_log.tell, wanted=wanted)


def _sink(place: Place | None) -> Callable[[bytes], object]:
    number = sys.stdout.fileno()
    return functools.partial(os.write, number) if place is None else LineSink(number, place.folder / "lines")


def build_server(settings: Settings, parts: Parts) -> uvicorn.Server:
    """A server that serves these parts, and runs what belongs beside them while it does."""
    security, ledger, door = parts.security, parts.ledger, _build_door(settings, parts)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with running(parts):
            yield

    surface = Surface(
        parts.router,
        parts.watch,
        parts.render_metrics,
        lambda: parts.degraded,
        Shown(parts.shared_records or parts.own_records(), ledger.story if ledger is not None else None),
        Console(parts.governor.orders, parts.governor.shown, MODES),
        parts.num_workers,
        lambda: read_aliases(parts.governor.settings.model_aliases),
    )

    def set_hints(changed: Settings) -> None:
        door.hints = build_hints(changed)

    parts.governor.set_hints = set_hints
    protocol = HookProtocol if settings.data_path == "hook" else DoorProtocol
    app = security.guard(Front(door, build_app(surface, lifespan)))
    config = uvicorn.Config(
        Apart(app, settings.metrics_port) if settings.metrics_port else app,
        # uvicorn calls what it is given with the arguments of its own class.
        http=functools.partial(protocol, door=door),  # type: ignore[arg-type]
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        ssl_context_factory=security.server_tls,
        timeout_keep_alive=max(1, round(settings.keep_alive_s)),
        timeout_graceful_shutdown=max(1, round(settings.grace_s)),
    )
    server = Server(config, parts.router, settings.pre_stop_s, settings.grace_s)
    parts.background.on_failure = server.leave
    return server


def _build_door(settings: Settings, parts: Parts) -> Door:
    limits = DoorLimits(settings.max_body_bytes, settings.max_head_bytes, settings.arrival_s)
    door = Door(parts.router, limits, parts.security.gate, escorted=parts.security.escorted)
    door.hints = build_hints(settings)
    door.sampler = Sampler(settings.trace_share) if settings.otlp else None
    door.priority_from, door.priority_ahead = settings.priority_from, settings.priority_ahead
    return door


async def serve(
    settings: Settings, listeners: Sequence[socket.socket], place: Place | None = None, again: Again | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; running requests get `grace_s` seconds to end.

    `place` is that of a worker; `again` reads the settings anew, on SIGHUP and when their file changes.

    Raises:
        DeploymentError: the set-up must change.
        Impossible: something beside the requests has failed, without which this is no router.
    """
    parts = build_parts(settings, place)
    parts.governor.again = again
    server = build_server(settings, parts)
    make_room()
    gc.collect()
    gc.freeze()  # what has been imported and built stays; collections need not look at it
    gc.set_threshold(*_GC_THRESHOLDS)
    if place is None:
        LOG.info(
            "listening on %s:%d, mode %s, data path %s",
            *listeners[0].getsockname()[:2],
            settings.mode,
            settings.data_path,
        )
    try:
        await server.serve(sockets=list(listeners))
    finally:  # uvicorn leaves a start that has failed by SystemExit
        if parts.background.failure is not None:
            raise parts.background.failure
