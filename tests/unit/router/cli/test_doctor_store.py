import re

import pytest

from router.cli import doctor_store
from router.cli.doctor_findings import Level, Report
from router.cli.doctor_store import check_store
from router.contract.ids import Epoch
from router.store.embedded import EmbeddedStore
from router.store.fleet import FleetStore
from tests.support.fleets import an_instance

pytestmark = pytest.mark.needs("redis")


def told(report: Report, level: Level) -> str:
    return "\n".join(finding.sentence for finding in report.findings if finding.level is level)


async def test_a_sound_store_tells_its_fleet(redis_url, redis, namespace):
    fleet = FleetStore(redis, namespace)
    instance = an_instance(epoch=await fleet.claim_epoch("p0"))
    await fleet.register(instance, 30.0)
    report = Report()
    records = await check_store(report, redis_url, namespace)
    assert [record.instance for record in records] == [instance]
    assert report.is_well
    assert "policy volatile-lru" in told(report, Level.GOOD)
    assert "knows 1 instances" in told(report, Level.GOOD)


async def test_a_store_that_does_not_answer_is_a_failure(tmp_path):
    report = Report()
    assert await check_store(report, f"unix://{tmp_path}/none.sock", "tandem") is None
    assert "check that Redis runs" in told(report, Level.FAILURE)


async def test_a_store_that_refuses_writes_once_full_is_a_warning():
    with EmbeddedStore(arguments=("--maxmemory-policy", "noeviction")) as store:
        report = Report()
        assert await check_store(report, store.url, "tandem") == ()
    assert report.is_well
    assert "volatile-lru" in told(report, Level.WARNING)


async def test_a_replica_is_a_failure():
    with EmbeddedStore(arguments=("--replicaof", "127.0.0.1 1")) as store:
        report = Report()
        assert await check_store(report, store.url, "tandem") is None
    assert "read-only replica" in told(report, Level.FAILURE)


async def test_a_store_that_is_full_is_a_failure():
    with EmbeddedStore(max_memory_bytes=1, arguments=("--maxmemory-policy", "noeviction")) as store:
        report = Report()
        assert await check_store(report, store.url, "tandem") is None
    assert "maxmemory" in told(report, Level.FAILURE)


async def test_a_clock_that_differs_is_a_warning(redis_url, namespace, monkeypatch):
    real = doctor_store.time.time
    monkeypatch.setattr(doctor_store.time, "time", lambda: real() - 30.0)
    report = Report()
    await check_store(report, redis_url, namespace)
    found = re.search(r"differs from here by \+([\d.]+) s", told(report, Level.WARNING))
    assert found is not None
    assert float(found[1]) == pytest.approx(30.0, abs=2.0)


async def test_records_that_cannot_be_read_are_a_warning(redis_url, redis, namespace):
    fleet = FleetStore(redis, namespace)
    instance = an_instance(epoch=Epoch(await fleet.claim_epoch("p0")))
    await fleet.register(instance, 30.0)
    (instances,) = [key async for key in redis.scan_iter(f"*{namespace}*:instances")]
    await redis.hset(instances, "p0", b"nonsense")
    report = Report()
    assert await check_store(report, redis_url, namespace) == ()
    assert "1 instances' records cannot be read" in told(report, Level.WARNING)
