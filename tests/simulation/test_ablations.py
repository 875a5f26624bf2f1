"""Without a safeguard, the promise that it keeps is seen to break: the world would notice."""

import pytest

from engine_shim.simulation.ablations import SAFEGUARDS, Safeguard
from engine_shim.simulation.campaign import campaign

SEEDS = 3000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("safeguard", SAFEGUARDS.values(), ids=lambda safeguard: safeguard.name)
def test_without_it_its_promise_breaks(safeguard: Safeguard) -> None:
    parts = campaign(0, SEEDS, frozenset({safeguard.name}), 1)
    violations = (violation for part in parts for verdict in part.bad for violation in verdict.violations)
    assert any(violation.invariant is safeguard.breaks for violation in violations)
