import httpx
import pytest
from fastapi import FastAPI

from router.api.app import add_problems
from router.api.watching import MAX_SHOWN, Shown, add_watching
from router.contract.errors import StoreDown
from router.contract.ids import Attempt
from router.contract.ledger import Outcome, StoryLine
from router.core.record import Record
from router.observe.recent import OwnRecords, Recent

LINE = StoryLine(1.5, Attempt(1), "router-a", "served", "push")


def client_of(recent: Recent, story=None) -> httpx.AsyncClient:
    app = FastAPI()
    add_problems(app)
    add_watching(app, Shown(OwnRecords(recent, lambda: None), story))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://router")


def records(number: int) -> Recent:
    recent = Recent(kept=MAX_SHOWN + 10)
    for one in range(number):
        recent.add(Record(float(one), f"req-{one}", "", "m", "/", True, outcome=Outcome.SERVED))
    return recent


@pytest.mark.parametrize(("limit", "shown"), [(3, 3), (0, 1), (10**9, MAX_SHOWN)])
async def test_a_bounded_number_is_shown(limit, shown):
    async with client_of(records(MAX_SHOWN + 5)) as client:
        listed = (await client.get("/admin/requests", params={"limit": limit})).json()["requests"]
    assert len(listed) == shown
    assert listed[0]["request_id"] == f"req-{MAX_SHOWN + 4}"


async def test_a_request_of_another_replica_has_its_story_only():
    async def story(request_id):
        return (LINE,) if request_id == "req-there" else ()

    async with client_of(records(1), story) as client:
        one = (await client.get("/admin/requests/req-there.2")).json()
        assert one["record"] is None
        assert (one["story"][0]["stage"], one["story"][0]["writer"]) == ("served", "router-a")
        assert (await client.get("/admin/requests/req-none")).status_code == 404


async def test_a_store_that_is_away_is_said_to_be():
    async def story(request_id):
        raise StoreDown("away")

    async with client_of(records(1), story) as client:
        one = await client.get("/admin/requests/req-9")
    assert (one.status_code, one.json()) == (200, {"record": None, "story": [], "degraded": True})


async def test_the_page_may_load_nothing_of_others():
    async with client_of(Recent()) as client:
        for path, kind in (("/ui", "text/html"), ("/ui/page.js", "text/javascript"), ("/ui/page.css", "text/css")):
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, f"{kind}; charset=utf-8")
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert "unsafe" not in answer.headers["content-security-policy"]
            assert "http://" not in answer.text.replace("http://www.w3.org/", "") and "https://" not in answer.text
        assert (await client.get("/ui/other.js")).status_code == 404
