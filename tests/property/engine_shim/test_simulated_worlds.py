"""A few hundred seeds of the simulated world, quick enough for every change; tests/simulation plays ten thousand."""

import pytest

from engine_shim.simulation.campaign import play
from engine_shim.simulation.report import story_text


@pytest.mark.parametrize("block", range(6))
def test_every_promise_is_kept(block: int) -> None:
    findings = play(20_000 + 50 * block, 50, frozenset())
    assert findings.bad == [], story_text(findings.bad[0])
    assert findings.counts["outcome served"] > 100
