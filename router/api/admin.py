"""/admin: what the router believes, and what operators may order. The gate has checked the key before."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict

from router.contract.errors import BadRequest, InstanceUnknown
from router.contract.ids import InstanceId
from router.core.fleet import Fleet, Member
from router.driver.orders import Orders
from router.driver.router import Router
from router.driver.watch import FleetWatch


@dataclass(frozen=True, slots=True)
class Console:
    """What operators see and command."""

    orders: Orders
    config: Callable[[], dict[str, object]]
    """The settings in force, without secrets."""
    modes: tuple[str, ...]
    """What a mode may be set to."""


class _Target(BaseModel):
    model_config = ConfigDict(extra="forbid")
    instance_id: str


class _Mode(BaseModel):
    model_config = ConfigDict(extra="forbid")
    mode: str | None


def add_admin(app: FastAPI, router: Router, watch: FleetWatch, console: Console) -> None:
    """The application serves `/admin/fleet`, `drain`, `undrain`, `mode` and `config`."""
    orders = console.orders

    @app.get("/admin/fleet")
    async def fleet() -> dict[str, object]:
        """Every instance, its last heartbeat, and what this router has on its way to it."""
        return {
            "degraded": watch.degraded,
            "age_s": round(time.monotonic() - watch.looked_at, 3),
            "mode": orders.mode or None,
            "drained": sorted(orders.drained),
            "instances": [_shown(member, router) for member in router.fleet.members],
        }

    async def drain(target: _Target, *, draining: bool) -> dict[str, object]:
        known = {member.instance.instance_id for member in router.fleet.members}
        instance_id = InstanceId(target.instance_id)
        if instance_id not in known and (draining or instance_id not in orders.drained):
            raise InstanceUnknown(
                f"There is no instance {instance_id!r}; GET /admin/fleet lists them.", param="instance_id"
            )
        shared = await orders.drain(instance_id, draining=draining)
        return {"instance_id": instance_id, "draining": draining, "shared": shared}

    @app.post("/admin/drain")
    async def drain_instance(target: _Target) -> dict[str, object]:
        """It finishes what it has and gets nothing new, until it is undrained. `shared`: all routers know."""
        return await drain(target, draining=True)

    @app.post("/admin/undrain")
    async def undrain_instance(target: _Target) -> dict[str, object]:
        """It gets new work again, unless it is draining by itself."""
        return await drain(target, draining=False)

    @app.post("/admin/mode")
    async def set_mode(wanted: _Mode) -> dict[str, object]:
        """Requests are placed in this mode; null: in the configured one."""
        if wanted.mode is not None and wanted.mode not in console.modes:
            raise BadRequest(f"mode must be null or one of {', '.join(console.modes)}.", param="mode")
        shared = await orders.set_mode(wanted.mode or "")
        return {"mode": wanted.mode, "shared": shared}

    @app.get("/admin/config")
    async def config() -> dict[str, object]:
        """The settings in force, without secrets."""
        return console.config()


def _shown(member: Member, router: Router) -> dict[str, object]:
    instance = member.instance
    kv = instance.kv
    return {
        "instance_id": instance.instance_id,
        "role": instance.role,
        "epoch": instance.epoch,
        "url": instance.url,
        "model": instance.model,
        "aliases": list(instance.aliases),
        "engine": instance.engine,
        "zone": instance.zone,
        "labels": dict(instance.labels),
        "draining": instance.draining,
        "compat_hash": kv.compat_hash if kv else None,
        "modes": list(kv.modes) if kv else [],
        "feeds": _feeds(router.fleet, member),
        "health": router.health.state_of(instance.instance_id),
        "engine_id": kv.engine_id if kv else None,
        "dp_rank": kv.dp_rank if kv else 0,
        "load": {name: getattr(member.load, name) for name in member.load.__slots__},
        "on_its_way": member.burden.requests,
    }


def _feeds(fleet: Fleet, member: Member) -> list[str]:
    """Ids of the decode instances that this prefill instance can feed, in whatever mode."""
    pairings = fleet.pools[member.instance.model].pairings.values()
    fed = (other for pairing in pairings for other in pairing.decodes_of.get(member.instance.instance_id, ()))
    return sorted({other.instance.instance_id for other in fed})
