"""Without a safeguard, the promise that it keeps is seen to break: the world would notice."""

from itertools import chain

import pytest

from engine_shim.simulation.ablations import SAFEGUARDS, Safeguard
from engine_shim.simulation.campaign import campaign

SEEDS = 3000
SEEN_AT = {
    "late_refusal": 1512,
    "refuse_the_dead": 562,
    "death_needs_proof": 1039,
    "fence_by_epoch": 451,
    "kv_deadline": 292,
    "registration_deadline": 149,
    "hedge_needs_fresh_attempt": 3,
    "hedge_loser_is_silenced": 54,
    "chunks_follow_prefill": 6,
    "layers_follow_prefill": 64,
    "pin_chunks": 22,
    "drain_before_stopped": 3,
}
"""Seeds that are tried first, since they showed it once; whatever changes their course costs time, not the test."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("safeguard", SAFEGUARDS.values(), ids=lambda safeguard: safeguard.name)
def test_without_it_its_promise_breaks(safeguard: Safeguard) -> None:
    off = frozenset({safeguard.name})
    parts = chain(campaign(SEEN_AT.get(safeguard.name, 0), 1, off, 1), campaign(0, SEEDS, off, 1))
    violations = (violation for part in parts for verdict in part.bad for violation in verdict.violations)
    assert any(violation.invariant is safeguard.breaks for violation in violations)
