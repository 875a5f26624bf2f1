from __future__ import annotations

import httpx

from engine_shim.build import ENDPOINTS, open_kitchen
from engine_shim.serve.app import build_app
from engine_shim.settings import ShimSettings
from tests.support.tiny_models import tiny_engine


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
