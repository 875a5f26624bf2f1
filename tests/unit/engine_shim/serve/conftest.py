from __future__ import annotations

import httpx
import pytest

from engine_shim.serve.app import build_app
from engine_shim.settings import ShimSettings
from tests.support.fake_driver import FakeDriver, byte_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture
async def driver(tokenizer):
    return FakeDriver(tokenizer)


@pytest.fixture
async def app(driver):
    return build_app(driver, settings=ShimSettings(max_body_bytes=4096, request_for_s=60.0))


@pytest.fixture
async def client(app):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shim") as client:
        yield client
