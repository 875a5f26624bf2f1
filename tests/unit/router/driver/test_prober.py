import asyncio
from dataclasses import replace
from time import monotonic

import pytest

from router.contract.errors import Blame, LegBroken
from router.core.admission import Admission
from router.core.burden import Burdens
from router.core.fleet import fold
from router.core.placement import Desk, Rules
from router.core.pulse import PulseRules
from router.driver import prober as module
from router.driver.conduct import Conduct
from router.driver.prober import Prober
from router.driver.router import Router
from router.legs.call import Reply
from tests.support.instances import Seen, decode, prefill

PERIOD_S = 100.0


@pytest.fixture
def scene(monkeypatch):
    """A prober of p0 and d0, whose calls are answered by what is put under their host."""
    answers = {}

    async def answered(pool, request, side, timeout_s):
        answer = answers[request.split(b"host: ")[1].split(b":")[0].decode()]
        if isinstance(answer, int):
            return Reply(answer, [], b"")
        raise answer

    monkeypatch.setattr(module, "call", answered)
    router = Router(Desk(Rules()), Burdens(), Admission(9, 0), Conduct())
    router.take_fleet(fold([prefill("p0"), decode("d0")], router.burdens))
    return router, Prober(router, PulseRules(period_s=PERIOD_S, failures=2)), answers


async def look(prober: Prober, now: float) -> list[str]:
    due = prober.due(now)
    for instance in due:
        await prober.probe(instance)
    return [instance.instance_id for instance in due]


async def test_everyone_is_asked_when_due_and_answers_are_told(scene):
    router, prober, answers = scene
    answers |= {"p0": 503, "d0": LegBroken("No.", side=Blame.DECODE)}
    now = monotonic()
    assert sorted(await look(prober, now)) == ["d0", "p0"]
    assert [router.health.state_of(name) for name in ("p0", "d0")] == ["not_ready", "silent"]
    assert await look(prober, now + 1) == [], "not yet"
    answers |= {"p0": 200, "d0": 204}
    assert len(await look(prober, monotonic() + PERIOD_S)) == 2
    assert not router.health.alert


async def test_a_new_start_is_asked_at_once_and_an_older_one_is_not_heard(scene):
    router, prober, answers = scene
    answers |= {"p0": 200, "d0": 200}
    now = monotonic()
    await look(prober, now)
    older = router.fleet.members[-1].instance
    assert older.instance_id == "p0"
    router.take_fleet(fold([prefill("p0", epoch=2), decode("d0")], router.burdens))
    assert await look(prober, now + 1) == ["p0"]
    answers["p0"] = 503
    await prober.probe(older)
    assert not router.health.alert


async def test_each_probe_has_a_connection_of_its_own_and_leaves_none():
    ended = []

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        ended.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    router = Router(Desk(Rules()), Burdens(), Admission(9, 0), Conduct())
    router.take_fleet(fold([Seen(replace(prefill("p0").instance, url=url))], router.burdens))
    prober = Prober(router, PulseRules(period_s=PERIOD_S))
    async with server, asyncio.timeout(10):
        for number in range(2):
            assert await look(prober, monotonic() + number * PERIOD_S) == ["p0"]
            while len(ended) <= number:
                await asyncio.sleep(0.001)
    assert ended == [b"", b""] and not router.health.alert
    assert router.pools() == {}, "those of the legs have not been used"


async def test_it_goes_on_until_it_is_cancelled(scene, monkeypatch):
    router, prober, answers = scene
    monkeypatch.setattr(module, "TICK_S", 0.001)
    answers |= {"p0": 503, "d0": 200}
    running = asyncio.create_task(prober.run())
    async with asyncio.timeout(10):
        while not router.health.alert:
            await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_probe_that_fails_by_a_bug_costs_that_probe_only(scene, monkeypatch, caplog):
    router, prober, answers = scene
    monkeypatch.setattr(module, "TICK_S", 0.001)
    answers |= {"p0": ValueError("a bug"), "d0": 503}
    running = asyncio.create_task(prober.run())
    async with asyncio.timeout(10):
        while not router.health.alert:
            await asyncio.sleep(0.001)
    assert router.health.state_of("d0") == "not_ready" and not running.done()
    assert "'p0' cannot be probed" in caplog.text
    running.cancel()
