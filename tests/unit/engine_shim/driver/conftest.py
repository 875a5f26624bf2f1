"""Couples that several of these tests use."""

from collections.abc import AsyncIterator

import pytest

from engine_shim.core.rendezvous import PrefillClocks
from tests.support.couples import Couple, open_couple
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import Clocks, small_layout


@pytest.fixture(params=[(4, 4), (4, 8), (8, 4), (3, 5)], ids=lambda sizes: f"P{sizes[0]}-D{sizes[1]}")
async def pair(request: pytest.FixtureRequest) -> AsyncIterator[Couple]:
    blocks = request.param
    clocks = Clocks(PrefillClocks(lease_for_s=5.0))
    pair = await open_couple(FakeEngine(small_layout(blocks[0])), FakeEngine(small_layout(blocks[1])), clocks)
    yield pair
    await pair.site.aclose()


@pytest.fixture
async def plain() -> AsyncIterator[Couple]:
    pair = await open_couple()
    yield pair
    await pair.site.aclose()
