"""The fleet in Redis: instances register under a lease, heartbeat their load, and are gone when the lease ends.

An Epoch fences: once a newer start of an instance has claimed its epoch, everything that an older start still says is
refused. Draining belongs to one start; it survives a lost lease and ends with the next start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.contract.ids import Epoch, InstanceId
from router.contract.instance import Instance, Load
from router.store import keys
from router.store.codec import decode_instance, decode_load, encode_instance, encode_load
from router.store.connection import StoreClient
from router.store.scripts import read_script

KEEP_S = 7 * 86400
"""Seconds that a start is remembered after its last sign of life."""

_CLAIM = read_script("clock", "claim")
_REGISTER = read_script("clock", "register")
_HEARTBEAT = read_script("clock", "heartbeat")
_LEAVE = read_script("clock", "leave")
_SNAPSHOT = read_script("clock", "snapshot")


@dataclass(frozen=True, slots=True)
class FleetRecord:
    """One live instance as the store knows it."""

    instance: Instance
    load: Load
    """Of its last heartbeat; all zero before the first."""
    lease_left_s: float


class FleetStore:
    """The fleet of one namespace. Every method raises StoreDown when Redis does not answer."""

    def __init__(self, redis: StoreClient, namespace: str = keys.NAMESPACE) -> None:
        self._redis = redis
        self._namespace = namespace
        self._decoded: dict[bytes, Instance | None] = {}
        self._members = (
            keys.fleet_leases(namespace),
            keys.fleet_instances(namespace),
            keys.fleet_loads(namespace),
            keys.fleet_draining(namespace),
        )
        self.malformed = 0
        """Records that snapshots could not read and have left out, so far."""
        self.unreadable = 0
        """The same, of the last snapshot."""

    async def claim_epoch(self, instance_id: InstanceId) -> Epoch:
        """An epoch above all that were ever claimed for this id; older starts are fenced from this moment."""
        return Epoch(int(await _CLAIM.run(self._redis, (self._start(instance_id),), _ms(KEEP_S))))

    async def register(self, instance: Instance, lease_for_s: float) -> bool:
        """True: the instance is in the fleet for `lease_for_s` seconds. False: a newer start has claimed its id."""
        answer = await _REGISTER.run(
            self._redis,
            self._keys(instance.instance_id),
            instance.instance_id,
            instance.epoch,
            _ms(lease_for_s),
            _ms(KEEP_S),
            encode_instance(instance),
            int(instance.draining),
        )
        return bool(answer)

    async def heartbeat(self, instance_id: InstanceId, epoch: Epoch, load: Load, lease_for_s: float) -> bool:
        """True: the lease runs for `lease_for_s` seconds from here and the load is known.

        False: the lease has ended, the store has lost it, or a newer start has claimed the id; register again.
        """
        answer = await _HEARTBEAT.run(
            self._redis,
            self._keys(instance_id),
            instance_id,
            epoch,
            _ms(lease_for_s),
            _ms(KEEP_S),
            encode_load(load),
        )
        return bool(answer)

    async def leave(self, instance_id: InstanceId, epoch: Epoch) -> bool:
        """True: the instance is gone from the fleet. False: a newer start has taken its place and stays."""
        return bool(await _LEAVE.run(self._redis, self._keys(instance_id), instance_id, epoch))

    async def snapshot(self) -> tuple[FleetRecord, ...]:
        """All live instances, ordered by id, as they were at one moment; one round trip."""
        now_ms, leases, instances, loads, drained = await _SNAPSHOT.run(self._redis, self._members)
        instance_of, load_of, draining = _pairs(instances), _pairs(loads), frozenset(drained)
        decoded: dict[bytes, Instance | None] = {}
        records, before = [], self.malformed
        for instance_id, ends_at_ms in _pairs(leases).items():
            raw = instance_of.get(instance_id, b"")
            # An Instance changes only when it registers anew: equal bytes are decoded once, not at each snapshot.
            instance = decoded[raw] = self._decoded[raw] if raw in self._decoded else decode_instance(raw)
            load = decode_load(load_of[instance_id]) if instance_id in load_of else Load()
            if instance is None or load is None:
                self.malformed += 1
                continue
            if instance.draining is not (instance_id in draining):
                instance = replace(instance, draining=not instance.draining)
            records.append(FleetRecord(instance, load, (float(ends_at_ms) - now_ms) / 1000))
        self._decoded = decoded
        self.unreadable = self.malformed - before
        return tuple(sorted(records, key=_id_of))

    def _start(self, instance_id: InstanceId) -> str:
        return keys.fleet_start(self._namespace, instance_id)

    def _keys(self, instance_id: InstanceId) -> tuple[str, str, str, str, str]:
        return (*self._members, self._start(instance_id))


def _id_of(record: FleetRecord) -> str:
    return record.instance.instance_id


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    """Redis's flat list of field, value, field, value, ... as a dict."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
