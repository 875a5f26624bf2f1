"""The order in which a shim begins, and that it ends with its engine."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from engine_shim.__main__ import listen, serve
from engine_shim.settings import ShimSettings
from router.contract.errors import EngineDown


def opened_shim(url, app, membership=None):
    instance = SimpleNamespace(url=url, instance_id="d")
    driver = SimpleNamespace(instance=instance, ended=asyncio.get_running_loop().create_future())
    closed = []

    async def aclose(drain_for_s):
        closed.append(drain_for_s)

    kitchen = SimpleNamespace(membership=membership, driver=driver)
    return SimpleNamespace(kitchen=kitchen, app=app, aclose=aclose, closed=closed)


async def opening(opened):
    return opened


async def test_who_answers_readyz_is_in_the_fleet_already():
    listener = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/readyz"
    app, joined = FastAPI(), asyncio.Event()
    app.get("/readyz")(lambda: "ready")

    async def join():
        async with httpx.AsyncClient(timeout=0.3) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get(url)
        joined.set()

    opened = opened_shim(url, app, SimpleNamespace(join=join))
    serving = asyncio.create_task(serve(ShimSettings(), opening(opened), listener))
    try:
        async with httpx.AsyncClient(timeout=30.0) as client:
            assert (await client.get(url)).status_code == 200
        assert joined.is_set()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        listener.close()


async def test_the_process_ends_with_an_engine_that_does_not_go_on():
    listener = listen("127.0.0.1", 0)
    opened = opened_shim("http://127.0.0.1", FastAPI())
    serving = asyncio.create_task(serve(ShimSettings(), opening(opened), listener))
    await asyncio.sleep(0)
    opened.kitchen.driver.ended.set_result(EngineDown("It must be restarted."))
    with pytest.raises(EngineDown, match="must be restarted"):
        await asyncio.wait_for(serving, 10.0)
    assert opened.closed == [0.0], "nobody waits for what cannot end well"
    listener.close()
