"""`tandem doctor` on the store: does it answer, may it be written, what does it do when it is full, what time is it?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from redis.asyncio import Redis
from redis.exceptions import RedisError

from router.cli.doctor_findings import Report
from router.contract.errors import StoreDown
from router.store import keys
from router.store.connection import StoreClient, connect, shown, store_errors
from router.store.fleet import FleetRecord, FleetStore

MAX_SKEW_S = 1.0
MIN_VERSION = (6, 2)


async def check_store(report: Report, url: str, namespace: str) -> Sequence[FleetRecord] | None:
    """The store has been looked at; returns its fleet, or None when it does not answer."""
    client = connect(url)
    try:
        with store_errors():
            if isinstance(client, Redis):
                await _check_server(report, client)
            await _check_clock(report, client)
            await client.set(keys.doctor(namespace), b"", px=1000)
        fleet = FleetStore(client, namespace)
        records = await fleet.snapshot()
    except StoreDown as error:
        report.fail("store", f"{shown(url)}: {error.message}")
        return None
    finally:
        await client.aclose()
    if fleet.malformed:
        report.warn("store", f"{fleet.malformed} instances' records cannot be read; run the same release everywhere.")
    report.good("store", f"{shown(url)} knows {len(records)} instances in namespace {namespace!r}.")
    return records


async def _check_server(report: Report, client: Redis) -> None:
    facts: Mapping[str, object] = await client.info()
    version = str(facts.get("valkey_version") or facts.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_VERSION:
        report.fail("store", f"Version {version} is too old; run Redis {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer.")
    if facts.get("role") == "slave":
        report.fail("store", "This is a read-only replica; give the address of the primary.")
    try:
        policy = str((await client.config_get("maxmemory-policy")).get("maxmemory-policy", "unknown"))
    except RedisError:  # a managed store may forbid CONFIG; INFO tells the same
        policy = str(facts.get("maxmemory_policy", "unknown"))
    limit_bytes = int(str(facts.get("maxmemory", 0)))
    limit = f"at most {limit_bytes >> 20} MiB" if limit_bytes else "without a memory limit"
    if policy == "noeviction":
        report.warn(
            "store",
            f"Version {version}, {limit}, policy noeviction: once full it refuses writes, and Stories are lost; set "
            "maxmemory and maxmemory-policy volatile-lru (every key of ours has a TTL).",
        )
    else:
        report.good("store", f"Version {version}, {limit}, policy {policy}.")


async def _check_clock(report: Report, client: StoreClient) -> None:
    before_s = time.time()
    seconds, micros = await client.time()
    after_s = time.time()
    skew_s = int(seconds) + int(micros) / 1e6 - (before_s + after_s) / 2
    told = f"answers in {(after_s - before_s) * 1e3:.1f} ms; its clock differs from here by {skew_s:+.3f} s"
    if abs(skew_s) > MAX_SKEW_S:
        report.warn("store", f"It {told}: times in Stories are misleading; run NTP on all machines.")
    else:
        report.good("store", f"It {told}.")
