"""Late: worlds whose routers choose decode when prefill nears its end, and what goes wrong just then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from engine_shim.simulation.chaos import Fault, FaultKind, draw_fault
from router.contract.instance import Mode
from router.core.late import LateChoice

LATE = 0x1A7E00
"""Tells this source of chance from the world's own, so that other worlds are what they were before."""
_SHARE = 0.3


class DrawnLate(LateChoice):
    """Expects anything of a prefill: too much, too little, and now and then that it is over at once."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(0.0)
        self._rng = rng

    def after_s(self, expected_s: float) -> float:
        """Whatever chance says."""
        return self._rng.choice((-1.0, 0.05, 0.3, 1.0, 2.5))


def draw_late(seed: int, mode: Mode, hosts: Sequence[str]) -> tuple[LateChoice | None, list[Fault]]:
    """When the routers of this world choose decode (None: with prefill), and the faults that wait for that.

    A fault strikes just then; or decode has left in good order by then, so that nobody may be there to be chosen.
    """
    rng = random.Random(seed ^ LATE)
    if mode is not Mode.PUSH or rng.random() >= _SHARE:
        return None, []
    faults = [replace(draw_fault(rng, hosts), moment="decode chosen") for _ in range(rng.choice((0, 1, 1)))]
    if rng.random() < 0.3:
        faults.append(Fault(FaultKind.LEAVE, "d1", "store", 8.0 * rng.random(), 4.0, "placed", False, False))
    return DrawnLate(rng), faults
