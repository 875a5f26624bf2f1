"""Decode chosen late: by the fleet, and by the health of its instances, as they are when prefill nears its end."""

from __future__ import annotations

import functools
from time import monotonic, time
from typing import TYPE_CHECKING

from router.contract.ids import InstanceId
from router.core.explain import explain
from router.core.intake import Intake
from router.core.placement import Placement, Refusal

if TYPE_CHECKING:
    from router.driver.router import Router


def complete(
    router: Router, intake: Intake, placement: Placement, excluded: frozenset[InstanceId]
) -> Placement | Refusal:
    """`placement`, whose decode was left open, with a decode instance outside `excluded`."""
    choose = functools.partial(router.desk.complete, router.fleet, intake, placement)
    health = router.health
    if health.alert:
        health.tick(monotonic())
        chosen = health.place(choose, router.fleet.members, excluded)
    else:
        chosen = choose(excluded)
    if router.explanations is not None:
        router.explanations.add(explain(router.fleet, intake, chosen, excluded | health.shut, time()))
    return chosen
