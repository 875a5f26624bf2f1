"""Every key that is written to Redis, in one place. `lua/README.md` lists the same keys with their meaning.

The part in braces is a hash tag: all keys with one tag live on one node of a Redis Cluster, so one script may touch
them together. The fleet has one tag; the ledger has LEDGER_SHARDS, and a request's id says which.
"""

from __future__ import annotations

from zlib import crc32

from router.contract.ids import InstanceId, RequestId

NAMESPACE = "tandem"
LEDGER_SHARDS = 4
"""Fixed for a namespace: two processes that disagree do not find each other's records."""


def fleet_leases(namespace: str) -> str:
    """Sorted set: instance id -> end of its lease."""
    return f"{{{namespace}:fleet}}:leases"


def fleet_instances(namespace: str) -> str:
    """Hash: instance id -> Instance record."""
    return f"{{{namespace}:fleet}}:instances"


def fleet_loads(namespace: str) -> str:
    """Hash: instance id -> Load record of its last heartbeat."""
    return f"{{{namespace}:fleet}}:loads"


def fleet_draining(namespace: str) -> str:
    """Set: ids of instances that take no new work."""
    return f"{{{namespace}:fleet}}:draining"


def fleet_orders(namespace: str) -> str:
    """Hash: what operators have ordered, by name."""
    return f"{{{namespace}:fleet}}:orders"


def fleet_start(namespace: str, instance_id: InstanceId) -> str:
    """Hash: the newest start of one instance."""
    return f"{{{namespace}:fleet}}:start:{instance_id}"


def router_leases(namespace: str) -> str:
    """Sorted set: router replica -> end of its lease."""
    return f"{{{namespace}:routers}}:leases"


def ledger_shard(request_id: RequestId) -> int:
    """The shard that keeps this request; equal in every process."""
    return crc32(request_id.encode()) % LEDGER_SHARDS


def ledger_open(namespace: str, shard: int) -> str:
    """Sorted set: transfer id of an open ticket -> its deadline, or a later time once a reaper has claimed it."""
    return f"{{{namespace}:ledger:{shard}}}:open"


def ledger_owned(namespace: str, shard: int) -> str:
    """Sorted set, all scores 0: owner and transfer id of an open ticket that no reaper has claimed yet."""
    return f"{{{namespace}:ledger:{shard}}}:owned"


def ledger_tickets(namespace: str, shard: int) -> str:
    """Hash: transfer id of an open ticket -> what a reaper needs to know of it."""
    return f"{{{namespace}:ledger:{shard}}}:tickets"


def ledger_request(namespace: str, shard: int, request_id: RequestId) -> str:
    """Hash: where the Rendezvous of each attempt of a request stands, and the lines of its Story."""
    return f"{{{namespace}:ledger:{shard}}}:request:{request_id}"


def budget(namespace: str, name: str) -> str:
    """Hash: router replica -> its share of one budget; `#seen`, `#doubt`: last question, end of doubt."""
    return f"{{{namespace}:budgets}}:{name}"


def doctor(namespace: str) -> str:
    """String: what `tandem doctor` writes to see whether the store takes writes."""
    return f"{{{namespace}:doctor}}"
