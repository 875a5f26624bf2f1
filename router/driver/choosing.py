"""Choosing instances around those that are not well, and telling why: for a whole request, and decode chosen late."""

from __future__ import annotations

import functools
from time import monotonic, time
from typing import TYPE_CHECKING

from router.contract.ids import InstanceId
from router.core.explain import explain
from router.core.health import Choose
from router.core.intake import Intake
from router.core.placement import Placement, Refusal

if TYPE_CHECKING:
    from router.driver.router import Router


def choose_with_care(
    router: Router, choose: Choose, intake: Intake, excluded: frozenset[InstanceId]
) -> Placement | Refusal:
    """What `choose` finds by the health of all as it is now; it is explained where explanations are kept."""
    health = router.health
    if health.alert:
        health.tick(monotonic())
        pool = router.fleet.pools.get(intake.model)
        chosen = health.place(choose, pool.members if pool is not None else (), excluded)
    else:
        chosen = choose(excluded)
    if router.explanations is not None:
        router.explanations.add(explain(router.fleet, intake, chosen, excluded | health.shut, time()))
    return chosen


def complete(
    router: Router, intake: Intake, placement: Placement, excluded: frozenset[InstanceId]
) -> Placement | Refusal:
    """`placement`, whose decode was left open, with a decode instance outside `excluded`."""
    return choose_with_care(
        router, functools.partial(router.desk.complete, router.fleet, intake, placement), intake, excluded
    )
