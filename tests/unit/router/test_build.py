import asyncio

from router import build
from router.build import build_router
from router.contract.instance import Mode
from router.core.policies import round_robin
from router.settings import Settings


def test_settings_reach_the_router():
    router = build_router(
        Settings(
            mode=Mode.PULL,
            local_below_chars=7,
            decode_policy="round_robin",
            prefill_cancel="never",
            attempts=4,
            next_token_s=3.0,
            connect_s=1.5,
            engine_idle_s=2.5,
        )
    )
    assert (router.desk.rules.mode, router.desk.rules.local_below_chars) == (Mode.PULL, 7)
    assert router.desk.rules.decode_policy is round_robin
    assert (router.conduct.cancels_prefill, router.conduct.attempts) == (False, 4)
    assert router.deadlines.next_token_s == 3.0
    assert (router.conduct.pool.connect_s, router.conduct.pool.idle_for_s) == (1.5, 2.5)
    assert router.conduct.owner.startswith("router-")


async def test_tasks_end_although_one_keeps_its_first_cancellation_for_itself(monkeypatch):
    monkeypatch.setattr(build, "CANCEL_AGAIN_S", 0.01)
    heard = []

    async def deaf_once() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                heard.append(1)
                if len(heard) == 2:
                    raise

    task = asyncio.create_task(deaf_once())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await build.end_all([task])
    assert (len(heard), task.cancelled()) == (2, True)
