from contextlib import asynccontextmanager
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from router.api.admin import Console
from router.api.app import Surface, add_problems, build_app
from router.api.watching import Shown
from router.contract.instance import Mode
from router.core.admission import Admission
from router.core.burden import Burdens
from router.core.fleet import fold
from router.core.placement import Desk, Rules
from router.driver.conduct import Conduct
from router.driver.orders import Orders
from router.driver.router import Router
from router.observe.recent import OwnRecords, Recent
from tests.support.instances import both, decode, prefill


@pytest.fixture
async def shown():
    """(client, router, watch) of an application without a server."""
    router = Router(Desk(Rules()), Burdens(), Admission(9, 0), Conduct())
    router.attach(None, SimpleNamespace(fold=lambda record, gaps: None, count_retry=lambda reason: None))
    watch = SimpleNamespace(degraded=False, looked_at=0.0)
    watching = Shown(OwnRecords(Recent(), router.clerk.work_off), None)
    aliases = {"nick": "m", "lost": "half"}
    console = Console(Orders(None, lambda drained, mode: None), dict, ())
    surface = Surface(
        router, watch, lambda: b"tandem_x 1\n", lambda: watch.degraded, watching, console, aliases=lambda: aliases
    )

    @asynccontextmanager
    async def lifespan(app):
        yield

    transport = httpx.ASGITransport(build_app(surface, lifespan), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        yield client, router, watch


async def test_models_are_those_that_can_be_served(shown):
    client, router, _ = shown
    router.take_fleet(fold([prefill(), decode(), prefill("px", model="half"), both("b", model="a")], router.burdens))
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["a", "m", "nick"]
    assert (await client.get("/v1/models/nick")).json()["root"] == "m"
    assert (await client.get("/v1/models/lost")).status_code == 404
    assert (await client.get("/v1/models/half")).status_code == 404


async def test_a_card_tells_the_least_context_that_is_told_and_the_model_behind_an_adapter(shown):
    client, router, _ = shown
    seen = [prefill(context=0, aliases=("lora",)), decode(context=50, aliases=("lora",)), both(context=0, model="a")]
    router.take_fleet(fold(seen, router.burdens))
    cards = {card.pop("id"): card for card in (await client.get("/v1/models")).json()["data"]}
    told = {name: (card["root"], card["parent"], card["max_model_len"]) for name, card in cards.items()}
    assert told == {"m": ("m", None, 50), "nick": ("m", None, 50), "lora": ("m", "m", 50), "a": ("a", None, None)}


@pytest.mark.parametrize(("mode", "ready"), [(Mode.PUSH, False), (Mode.LOCAL, True), (None, True)])
async def test_decode_alone_is_enough_where_it_may_be_alone(shown, mode, ready):
    client, router, _ = shown
    router.place_by(Rules(mode=mode))
    router.take_fleet(fold([decode()], router.burdens))
    answer = await client.get("/readyz")
    assert (answer.status_code == 200, answer.json()["models"]) == (ready, ["m"] * ready)
    assert [card["id"] for card in (await client.get("/v1/models")).json()["data"]] == ["m", "nick"] * ready


async def test_who_is_not_ready_says_why(shown):
    client, router, _ = shown
    assert (await client.get("/readyz")).json()["reason"].startswith("No engine is live")
    router.take_fleet(fold([prefill(modes=(Mode.PULL,)), decode(modes=(Mode.PULL,))], router.burdens))
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["ready"], answer.json()["models"]) == (503, False, [])
    assert "in push mode" in answer.json()["reason"]
    router.place_by(Rules(mode=Mode.PULL))
    assert ((answer := await client.get("/readyz")).status_code, answer.json()["reason"]) == (200, "")
    router.drain()
    assert (await client.get("/readyz")).json()["reason"] == "This router is shutting down."


async def test_readiness_follows_fleet_and_draining(shown):
    client, router, watch = shown
    assert (await client.get("/readyz")).status_code == 503
    router.take_fleet(fold([prefill(), decode()], router.burdens))
    assert (await client.get("/readyz")).json()["models"] == ["m"]
    watch.degraded = True
    degraded = await client.get("/readyz")
    assert degraded.status_code == 200 and degraded.json()["degraded"] is True
    router.drain()
    assert (await client.get("/readyz")).status_code == 503
    assert (await client.get("/healthz")).status_code == 200


async def test_the_fleet_is_shown_without_a_kv_identity_too(shown):
    client, router, _ = shown
    router.take_fleet(fold([prefill(), decode(kv=False)], router.burdens))
    shown_ = {i["instance_id"]: i for i in (await client.get("/admin/fleet")).json()["instances"]}
    assert shown_["d0"]["compat_hash"] is None and shown_["d0"]["modes"] == []
    assert shown_["p0"]["modes"] == ["push", "pull"]


async def test_metrics_are_rendered_elsewhere(shown):
    client, _, _ = shown
    answer = await client.get("/metrics")
    assert answer.text == "tandem_x 1\n" and answer.headers["content-type"].startswith("text/plain")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/none", 404, "not_found"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("POST", "/v1/completions", 500, "internal_error"),
        ("POST", "/v1/embeddings", 500, "internal_error"),
    ],
)
async def test_refusals_are_in_the_envelope(shown, method, path, status, code):
    client, _, _ = shown
    answer = await client.request(method, path, content=b"{}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


async def test_a_parameter_that_cannot_be_read_and_a_bug_are_in_the_envelope_too(caplog):
    app = FastAPI()
    add_problems(app)

    @app.get("/number")
    async def number(limit: int) -> int:
        return 1 // limit

    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
        unread = await client.get("/number?limit=x")
        assert (unread.status_code, unread.json()["error"]["param"]) == (400, "limit")
        broken = await client.get("/number?limit=0")
        assert (broken.status_code, broken.json()["error"]["code"]) == (500, "internal_error")
        assert "ZeroDivisionError" in broken.json()["error"]["message"] and "/number failed by a bug" in caplog.text
