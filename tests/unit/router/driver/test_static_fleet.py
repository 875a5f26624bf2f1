import httpx
import pytest

from router.contract.instance import Role
from router.driver import static_fleet as module
from router.driver.static_fleet import StaticFleet
from router.store.codec import encode_instance
from tests.support.instances import instance


@pytest.fixture
def engines(monkeypatch):
    """URL -> response of GET /kv/instance, or an exception."""
    answers: dict[str, object] = {}
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        found = answers[request.url.host]
        if isinstance(found, Exception):
            raise found
        return found

    client = httpx.AsyncClient
    monkeypatch.setattr(module.httpx, "AsyncClient", lambda **_: client(transport=httpx.MockTransport(answer)))
    monkeypatch.setattr(module, "POLL_S", 0.0)
    answers["asked"] = asked
    return answers


def told(name, role) -> httpx.Response:
    return httpx.Response(200, content=encode_instance(instance(name, role)))


async def test_engines_say_who_they_are(engines):
    engines["a"], engines["b"] = told("p0", Role.PREFILL), told("d0", Role.DECODE)
    fleet = StaticFleet(["http://a:1", "http://b:1", "http://a:1"])
    seen = await fleet.snapshot()
    assert sorted(s.instance.instance_id for s in seen) == ["d0", "p0"]
    assert all(0 < s.lease_left_s <= module.LEASE_S for s in seen)
    assert sorted(engines["asked"]) == ["http://a:1/kv/instance", "http://b:1/kv/instance"]
    await fleet.aclose()


@pytest.mark.parametrize(
    "silence", [httpx.ConnectError("refused"), httpx.Response(404), httpx.Response(200, content=b"{}")]
)
async def test_an_engine_that_is_silent_is_known_until_its_lease_ends(engines, monkeypatch, silence):
    engines["a"] = told("p0", Role.PREFILL)
    fleet = StaticFleet(["http://a:1"])
    clock = [100.0]
    monkeypatch.setattr(module, "monotonic", lambda: clock[0])
    await fleet.snapshot()
    engines["a"] = silence
    clock[0] += module.LEASE_S - 0.5
    (seen,) = await fleet.snapshot()
    assert seen.lease_left_s == pytest.approx(0.5)
    clock[0] += 1.0
    (seen,) = await fleet.snapshot()
    assert seen.lease_left_s < 0


async def test_engines_are_not_asked_too_often(engines, monkeypatch):
    engines["a"] = told("p0", Role.PREFILL)
    monkeypatch.setattr(module, "POLL_S", 1000.0)
    fleet = StaticFleet(["http://a:1"])
    await fleet.snapshot()
    await fleet.snapshot()
    assert len(engines["asked"]) == 1
