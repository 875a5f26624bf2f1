"""Real vLLM servers before a router, for all tests of this folder that only talk to them: stock ones, then ours."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.support.scenario_sites import OpenSite
from tests.support.scenario_stand import Stand, open_stand
from tests.support.vllm_processes import MODEL

KINDS = ("vllm-push", "vllm-pull", "vllm-shim-push", "vllm-shim-pull")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[OpenSite]:
    site = OpenSite(tmp_path_factory.mktemp, MODEL, num_cases=6)
    yield site
    await site.aclose()


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=KINDS)
async def stand(opened: OpenSite, request: pytest.FixtureRequest) -> AsyncIterator[Stand]:
    async with open_stand(opened, request.param) as stand:
        yield stand
