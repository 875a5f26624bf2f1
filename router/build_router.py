"""A Router of its settings: budgets, deadlines, policies and how engines are reached. Part of the build."""

from __future__ import annotations

import os
import socket
from math import inf

from router.contract.seal import Seal
from router.contract.wire import NO_WAITS, Waits
from router.core.admission import Admission, Limits
from router.core.breaker import BreakerRules
from router.core.budgets import Budget, Scope
from router.core.burden import Burdens
from router.core.hedging import HedgeRules
from router.core.placement import Desk
from router.core.timing import Deadlines
from router.driver.conduct import Conduct
from router.driver.exchange import Exchange
from router.driver.router import Router
from router.legs.access import EngineAccess
from router.legs.pool import PoolLimits
from router.placing import build_explanations, build_rules
from router.settings import Settings


def build_router(settings: Settings, access: EngineAccess | None = None) -> Router:
    """A Router that follows these settings and reaches engines by `access`; it has no fleet and no books yet."""
    conduct = build_conduct(settings, access or EngineAccess())
    router = Router(Desk(build_rules(settings)), Burdens(), build_admission(settings), conduct)
    router.explanations = build_explanations(settings)
    return router


def build_conduct(settings: Settings, access: EngineAccess) -> Conduct:
    """How requests are carried out; each has an owner of its own."""
    return Conduct(
        deadlines=Deadlines(
            prefill_s=settings.prefill_s,
            prefill_token_s=settings.prefill_token_s,
            first_token_s=settings.first_token_s,
            next_token_s=settings.next_token_s,
            answer_s=settings.answer_s,
            answer_token_s=settings.answer_token_s,
            stalled_s=settings.stalled_s,
            total_s=settings.total_s,
            queue_s=settings.queue_s,
            waits=_waits_of(settings),
        ),
        pool=PoolLimits(settings.connect_s, settings.engine_idle_s),
        access=access,
        attempts=settings.attempts,
        cancels_prefill=settings.prefill_cancel == "anytime",
        # Container restarts repeat host name and process id.
        owner=f"router-{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}",
        seal=Seal(settings.deployment_key),
        breaker=BreakerRules(
            settings.breaker_failures,
            settings.breaker_open_s,
            settings.breaker_open_max_s,
            settings.breaker_share,
            settings.breaker_window_s,
        ),
        retry_share=settings.retry_share,
        retry_floor_per_s=settings.retry_floor_per_s,
        vllm_lease_s=settings.vllm_lease_s,
        hedge=HedgeRules(settings.hedge_share, settings.hedge_after_s),
    )


def _waits_of(settings: Settings) -> Waits:
    if not settings.registration_s and not settings.kv_wait_s:
        return NO_WAITS  # by which each request knows without a look at its fields that there is nothing to say
    return Waits(settings.registration_s or inf, settings.kv_wait_s or inf)


def budgets_of(settings: Settings) -> tuple[tuple[Scope, Budget], ...]:
    """The budget of everybody, and those that every model and every caller has; in settings 0 means no limit."""
    return (
        (Scope.TOTAL, Budget(settings.max_requests, settings.max_tokens or inf)),
        (Scope.MODEL, Budget(settings.model_max_requests or inf, settings.model_max_tokens or inf)),
        (Scope.CALLER, Budget(settings.caller_max_requests or inf, settings.caller_max_tokens or inf)),
    )


def build_admission(settings: Settings) -> Admission[Exchange]:
    """The budgets and the line of these settings."""
    budgets = dict(budgets_of(settings))
    limits = Limits(
        model=budgets[Scope.MODEL],
        caller=budgets[Scope.CALLER],
        waiting_requests=settings.queue_requests,
        waiting_tokens=settings.queue_tokens or inf,
    )
    return Admission(settings.max_requests, settings.max_tokens, limits)
