"""Fixtures and rules of all tests: tiers by folder, capabilities by probe, one real store for the session."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from redis.asyncio import Redis

import engine_shim  # noqa: F401  says how OpenMP threads wait, which must come before torch is imported
from router.store.connection import connect
from router.store.embedded import EmbeddedStore
from tests.support.probes import PROBES, REDIS_URL_VARIABLE, required

TIERS = ("house", "unit", "property", "conformance", "simulation", "real", "deploy", "rollout", "chaos")
ROOT = Path(__file__).parent
SHARING = "tests/real/e2e/up"

settings.register_profile("tandem", deadline=None, print_blob=True)
settings.load_profile("tandem")


def pytest_configure(config: pytest.Config) -> None:
    for tier in TIERS:
        config.addinivalue_line("markers", f"{tier}: a test of the tier tests/{tier}")
    config.addinivalue_line("markers", "needs(*capabilities): what the machine must have, see tests/support/probes.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(ROOT):
            item.add_marker(item.path.relative_to(ROOT).parts[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # Any: xdist has no types
    """Of tests run side by side, one worker has a file to itself, and one the folder that shares a `tandem up`."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = nodeid.partition("::")[0]
            return SHARING if file.startswith(SHARING) else file

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for capability in marker.args:
            need(capability)


def need(capability: str) -> None:
    """Go on where the machine has it; fail where REQUIRE (or CI) names it; skip elsewhere."""
    missed = PROBES[capability]()
    if missed is None:
        return
    if capability in required():
        pytest.fail(f"{capability} is required here: {missed}", pytrace=False)
    pytest.skip(f"no {capability}: {missed}")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real server: the one of TANDEM_TEST_REDIS_URL, else an embedded one. Tests share it, each in its namespace."""
    need("redis")
    given = os.environ.get(REDIS_URL_VARIABLE)
    if given:
        yield given
        return
    with EmbeddedStore() as store:
        yield store.url


@pytest.fixture
def namespace() -> str:
    """A key prefix that no other test uses."""
    return f"test-{uuid4().hex[:12]}"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """A client of the shared server."""
    client = connect(redis_url)
    yield client
    await client.aclose()
