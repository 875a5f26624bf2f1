"""Instances, members and fleets for tests of the router's core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from router.contract.ids import Epoch, InstanceId, engine_id_of
from router.contract.instance import Instance, KVIdentity, Load, Mode, Role
from router.contract.kv import KVLayout
from router.core.burden import Burdens
from router.core.fleet import Fleet, Member, fold
from router.core.intake import Endpoint, Intake
from router.core.roster import Roster

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=1, block_tokens=16, num_blocks=8, dtype="float32")
IDLE = Load()
BOTH_MODES = (Mode.PUSH, Mode.PULL)


@dataclass(frozen=True, slots=True)
class Seen:
    """A Sighting."""

    instance: Instance
    load: Load = IDLE
    lease_left_s: float = 5.0


def instance(
    name: str, role: Role, *, model="m", epoch=1, compat="c", modes=BOTH_MODES, context=4096, kv=True, **more: Any
) -> Instance:
    instance_id = InstanceId(name)
    identity = KVIdentity(engine_id_of(instance_id, Epoch(epoch)), "127.0.0.1", 5600, LAYOUT, compat, tuple(modes))
    url = f"http://{name}:8000"
    return Instance(instance_id, role, Epoch(epoch), url, model, context, identity if kv else None, **more)


def prefill(name="p0", **fields) -> Seen:
    return Seen(instance(name, Role.PREFILL, **fields))


def decode(name="d0", **fields) -> Seen:
    return Seen(instance(name, Role.DECODE, **fields))


def both(name="b0", **fields) -> Seen:
    return Seen(instance(name, Role.BOTH, **fields))


def fleet(*seen: Seen, burdens: Burdens | None = None) -> Fleet:
    return fold(seen, burdens or Burdens())


def roster(num: int, burdens: Burdens | None = None) -> Roster:
    """So many decode instances, d00 and up, with nothing on their way."""
    return Roster(fleet(*(decode(f"d{number:02}") for number in range(num)), burdens=burdens).members)


def intake(model="m", whole="", body=b'{"model":"m"}', **fields) -> Intake:
    return Intake(Endpoint.CHAT, body, model, False, whole, **fields)


def names(members: tuple[Member, ...]) -> list[str]:
    return [member.instance.instance_id for member in members]
