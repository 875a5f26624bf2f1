from math import inf

from router.build_router import build_admission, build_router
from router.core.budgets import Budget, Scope
from router.settings import Settings


def test_a_limit_of_0_is_none():
    admission = build_admission(Settings())
    assert (admission._limits.model, admission._limits.caller) == (Budget(), Budget())
    assert admission._limits.waiting_requests == 0 and admission._limits.waiting_tokens == inf


def test_settings_become_budgets_and_rules():
    settings = Settings(model_max_requests=3, caller_max_tokens=70, queue_requests=5, queue_tokens=9, queue_s=2.0)
    router = build_router(settings)
    limits = router.admission._limits
    assert (limits.model, limits.caller) == (Budget(3), Budget(inf, 70))
    assert (limits.waiting_requests, limits.waiting_tokens, router.deadlines.queue_s) == (5, 9, 2.0)
    assert router.admission.used(Scope.TOTAL, "") == (0, 0)


def test_breakers_and_retries_follow_their_settings():
    conduct = build_router(Settings(breaker_failures=7, breaker_open_s=1.5, retry_share=0.5)).conduct
    assert (conduct.breaker.failures, conduct.breaker.open_s, conduct.retry_share) == (7, 1.5, 0.5)
