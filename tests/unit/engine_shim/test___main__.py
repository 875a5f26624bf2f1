"""The order in which a shim begins."""

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from engine_shim.__main__ import listen, serve
from engine_shim.settings import ShimSettings


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

    instance = SimpleNamespace(url=url, instance_id="d")
    kitchen = SimpleNamespace(membership=SimpleNamespace(join=join), driver=SimpleNamespace(instance=instance))

    async def opening():
        async def aclose(drain_for_s):
            pass

        ended = asyncio.get_running_loop().create_future()
        return SimpleNamespace(kitchen=kitchen, app=app, ended=ended, aclose=aclose)

    serving = asyncio.create_task(serve(ShimSettings(), opening(), listener))
    try:
        async with httpx.AsyncClient(timeout=30.0) as client:
            assert (await client.get(url)).status_code == 200
        assert joined.is_set()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        listener.close()
