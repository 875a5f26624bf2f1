from router.build import build_router
from router.contract.instance import Mode
from router.core.policies import round_robin
from router.settings import Settings


def test_settings_reach_the_router():
    router = build_router(
        Settings(
            mode=Mode.PULL,
            local_below_bytes=7,
            decode_policy="round_robin",
            prefill_cancel="never",
            attempts=4,
            next_token_s=3.0,
            connect_s=1.5,
            engine_idle_s=2.5,
        )
    )
    assert (router.desk.rules.mode, router.desk.rules.local_below_bytes) == (Mode.PULL, 7)
    assert router.desk.rules.decode_policy is round_robin
    assert (router.conduct.cancels_prefill, router.conduct.attempts) == (False, 4)
    assert router.deadlines.next_token_s == 3.0
    assert (router.conduct.pool.connect_s, router.conduct.pool.idle_for_s) == (1.5, 2.5)
    assert router.conduct.owner.startswith("router-")
