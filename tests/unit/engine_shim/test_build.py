from __future__ import annotations

import os

import httpx
import pytest

from engine_shim import build
from engine_shim.build import ENDPOINTS, load_engine, open_kitchen
from engine_shim.serve.app import build_app
from engine_shim.settings import ShimSettings
from router.contract.errors import BadSettings
from tests.support.tiny_models import tiny_engine


def test_an_engine_sees_the_gpus_that_it_was_given_and_says_which_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with pytest.raises(BadSettings, match="--devices names GPU 1"):
        load_engine(ShimSettings(device="cuda", devices="1"))
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr(
        build, "open_engine", lambda settings: seen.append((os.environ["CUDA_VISIBLE_DEVICES"], settings.num_gpus))
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    load_engine(ShimSettings(device="cuda", devices="1"))
    assert seen == [("7", 1)]


async def test_an_instance_tells_of_the_endpoints_that_its_app_has():
    settings = ShimSettings(fabric="none")
    kitchen = await open_kitchen(settings, tiny_engine(), 1234)
    try:
        assert kitchen.driver.instance.endpoints == ENDPOINTS
        transport = httpx.ASGITransport(build_app(kitchen.driver, settings=settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://shim") as client:
            for path in ENDPOINTS:
                assert (await client.post(path, json={"prompt": "hi", "tokens": [1, 2]})).status_code == 200
            assert (await client.post("/nothing", json={})).status_code == 404
    finally:
        await kitchen.aclose(0.0)
