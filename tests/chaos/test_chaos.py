"""Every kind of hurt on real processes under load: no answer is wrong or hangs, nothing is held, every pair serves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.chaos import ChaosPlan, run_chaos

pytestmark = [pytest.mark.needs("nixl", "redis"), pytest.mark.timeout(420)]
SEED_VARIABLE = "TANDEM_TEST_CHAOS_SEED"


async def test_no_request_is_wrong_or_hangs_and_nothing_is_held(tmp_path: Path) -> None:
    seed = int(os.environ.get(SEED_VARIABLE, "1"))
    report = await run_chaos(ChaosPlan(requests=900, per_s=10.0, every_s=2.5, seed=seed), tmp_path)
    print(report.text())
    assert report.is_good, report.text()
    assert report.num_served > 500, report.text()
