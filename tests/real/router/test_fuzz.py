"""Hostile clients, briefly; `make fuzz` does the same for minutes."""

import pytest

from tests.support.fuzz import ARRIVAL_S, fuzz
from tests.support.fuzz_cases import fuzz_case
from tests.support.routers import rig
from tests.support.siege import Force, besiege

NUM_CASES = 400


@pytest.mark.parametrize("data_path", ["hook", "asgi"])
async def test_spoilt_bytes_find_no_500_no_hang_and_leave_nothing(data_path):
    async with rig(data_path=data_path, arrival_s=ARRIVAL_S) as r:
        found = await fuzz(r, 314, range(NUM_CASES))
    assert found.faults == []
    assert found.num_cases == NUM_CASES
    assert {200, 400, 404, 405, 408, 415} <= found.statuses.keys(), "the cases reach all of the door"


def test_a_case_is_always_the_same():
    assert fuzz_case(3, 14) == fuzz_case(3, 14) != fuzz_case(3, 15)


async def test_a_siege_costs_bounded_memory_and_others_are_served():
    force = Force(idle=300, slow=30, heads=4, bodies=3, body_bytes=24 << 20, requests=30)
    report = await besiege(force)
    assert dict(report.served) == {200: force.requests + 1}
    assert dict(report.heads) == {431: force.heads}
    assert dict(report.bodies) == {413: force.bodies}
    assert report.grown_bytes < report.allowed_bytes
