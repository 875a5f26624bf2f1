"""Joins the budgets of one router with the store that divides them among replicas."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from math import inf

from router.contract.shares import UNLIMITED
from router.core.budgets import Budget, Scope
from router.driver.router import Router
from router.driver.sharing import Shared, Sharing
from router.settings import Settings
from router.store.connection import StoreClient
from router.store.shares import ShareStore

Names = Callable[[], Iterable[str]]


def build_sharing(settings: Settings, router: Router, redis: StoreClient, callers: Names) -> Sharing:
    """The total budget, those of the fleet's models and of `callers` that have keys, as far as there are any."""
    owner = router.conduct.owner
    budgets = functools.partial(_budgets, settings, router, callers)
    return Sharing(ShareStore(redis, settings.namespace, owner), owner, budgets, settings.router_lease_s)


def _budgets(settings: Settings, router: Router, callers: Names) -> Mapping[str, Shared]:
    limits = (
        (Scope.MODEL, settings.model_max_requests, settings.model_max_tokens, router.fleet.pools),
        (Scope.CALLER, settings.caller_max_requests, settings.caller_max_tokens, callers()),
    )
    budgets = {"total": _shared(router, Scope.TOTAL, "", settings.max_requests, settings.max_tokens)}
    for scope, requests, tokens, names in limits:
        if requests or tokens:
            budgets |= {f"{scope}:{name}": _shared(router, scope, name, requests, tokens) for name in names}
    return budgets


def _shared(router: Router, scope: Scope, name: str, requests: int, tokens: int) -> Shared:
    def allow(share_requests: int, share_tokens: int) -> None:
        alone = share_tokens in (UNLIMITED, tokens)
        router.set_budget(scope, name, Budget(_limit(share_requests), _limit(share_tokens), alone))

    def used() -> tuple[int, int]:
        return router.admission.used(scope, name)

    return Shared(requests or UNLIMITED, tokens or UNLIMITED, used, allow)


def _limit(share: int) -> float:
    return inf if share == UNLIMITED else share
