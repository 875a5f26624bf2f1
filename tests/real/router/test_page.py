"""The page at /ui, in a real browser before a real router."""

import json
import os
from pathlib import Path

import pytest

from router.bench.mock_behaviour import Fault
from tests.support.browser import browsing
from tests.support.routers import BODY, PATH, rig, until

pytestmark = [pytest.mark.needs("browser"), pytest.mark.timeout(60)]

STREAM = BODY | {"stream": True}
TIMING = ((b"server-timing", b"seats;dur=3, kv;dur=30"),)
EVIL = '<img src=x onerror="window.harmed=1">'
PHOTOS = os.environ.get("TANDEM_TEST_PHOTOS", "")
"""A folder for pictures of the page, for who wants to look at it."""

TEXT = "document.body.innerText"
ROWS = "[...document.querySelectorAll('#requests tbody tr')].map((row) => row.innerText)"
CARDS = "[...document.querySelectorAll('[data-instance]')].map((card) => card.innerText)"
LOOKED = "Number(document.body?.dataset.looks ?? 0)"


async def photograph(page, name: str) -> None:
    if PHOTOS:
        for scheme in ("light", "dark"):
            await page.prefer(scheme)
            await page.photograph(Path(PHOTOS) / f"{name}-{scheme}.png")


async def test_fleet_and_requests_are_drawn():
    async with rig(num_prefill=2, num_decode=2) as r, browsing() as page:
        for engine in r.engines:
            r.behave(engine, gap_s=0.004, headers=TIMING if engine in r.decodes else (), delay_s=0.02)
        await page.goto(f"{r.url}/ui")
        assert "No request has ended here yet." in await page.until(f"{LOOKED} > 0 && {TEXT}")
        for _ in range(3):
            await r.client.post(PATH, json=STREAM, headers={"x-request-id": "mine"})
        await r.client.post(PATH, json=BODY | {"model": EVIL})
        await page.until(f"{ROWS}.length === 4")
        refused, served, *_ = await page.look(ROWS)
        assert "refused: model_not_found" in refused and EVIL in refused
        assert "served" in served and "push (configured)" in served and "mine" in served
        cards = {card.split("\n")[0]: card for card in await page.look(CARDS)}
        assert set(cards) == {"p0", "p1", "d0", "d1"}
        assert "feeds d0, d1" in cards["p0"] and "fed by p0, p1" in cards["d1"]
        assert "well" in cards["p0"]
        await page.look("document.querySelectorAll('#requests a')[1].click()")
        titles = "[...document.querySelectorAll('#timeline title')].map((title) => title.textContent)"
        told = "\n".join(await page.until(f"{titles}.length && {titles}"))
        for said in (
            "prefill leg",
            "registration",
            "transfer of the KV cache",
            "rendezvous at",
            "first token at",
            "stream",
        ):
            assert said in told, said
        assert "There is no Story" in await page.look(TEXT)
        await photograph(page, "request")
        assert await page.look("window.harmed") is None
        assert not page.complaints


@pytest.mark.needs("redis")
async def test_a_retried_request_has_its_lost_attempt_and_its_story(redis_url, namespace):
    async with rig(num_prefill=2, store=redis_url, namespace=namespace) as r, browsing() as page:
        r.behave(r.prefill, fault=Fault.REFUSE, status=503, times=1)
        r.behave(r.decode, delay_s=0.02)
        shown = {"earlier": []}
        while not shown["earlier"]:
            assert (await r.client.post(PATH, json=STREAM)).status_code == 200
            shown = (await r.client.get("/admin/requests")).json()["requests"][0]
        await r.parts.ledger.flush()
        await page.goto(f"{r.url}/ui#{shown['request_id']}")
        story = await page.until(
            "document.querySelectorAll('#story li').length > 2 && document.querySelector('#story').innerText"
        )
        assert story.count("opened") == 2 and "failed mock" in story and "served" in story
        lanes = await page.look("[...document.querySelectorAll('#timeline .lane')].map((lane) => lane.textContent)")
        assert any(lane.startswith("attempt 1:") for lane in lanes)
        await photograph(page, "retried")
        assert not page.complaints


async def test_an_empty_fleet_and_a_store_that_is_away_are_said():
    async with rig(num_prefill=0, num_decode=0, static=False, store="redis://127.0.0.1:1/0") as r, browsing() as page:
        await page.goto(f"{r.url}/ui")
        text = await page.until(f"{LOOKED} > 0 && {TEXT}")
        assert "No engine is live." in text and "not ready" in text and "store away" in text
        await photograph(page, "empty")


async def test_what_instances_call_themselves_is_only_text():
    async with rig() as r, browsing() as page:
        r.decode.name = r.decode.model = EVIL
        await until(lambda: EVIL in r.parts.router.fleet.pools)
        await page.goto(f"{r.url}/ui#{EVIL}")
        assert EVIL in await page.until(f"{CARDS}.length > 0 && {TEXT}")
        assert await page.look("window.harmed") is None


async def test_who_has_no_key_is_asked_for_one():
    async with rig(admin_key="open sesame") as r, browsing() as page:
        await page.goto(f"{r.url}/ui")
        assert "admin key" in await page.until("!document.querySelector('#notice').hidden && document.body.innerText")
        assert await page.look(f"{CARDS}.length") == 0
        await page.look("document.querySelector('#key').value = 'open sesame'")
        await page.look("document.querySelector('#access button').click()")
        assert len(await page.until(f"{CARDS}.length > 0 && {CARDS}")) == 2
        assert json.loads(await page.look("JSON.stringify([location.href])")) == [f"{r.url}/ui"], "no key in an address"
