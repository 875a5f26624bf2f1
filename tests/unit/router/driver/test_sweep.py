import asyncio
from time import monotonic

from router.driver import sweep as module
from router.driver.sweep import Sweep


class Due:
    def __init__(self, due_at, live):
        self.due_at, self.live, self.calls = due_at, live, 0
        self.called = asyncio.Event()

    def on_due(self, now):
        assert now >= self.due_at
        self.calls += 1
        self.live.discard(self)
        self.called.set()


async def test_only_what_is_due_is_called_and_may_leave_the_set(monkeypatch):
    monkeypatch.setattr(module, "PERIOD_S", 0.01)
    live = set()
    now = monotonic()
    due, also, later = Due(now, live), Due(now - 1, live), Due(now + 1000, live)
    live.update((due, also, later))
    sweep = Sweep((live, set()))
    sweep.start()
    await asyncio.gather(due.called.wait(), also.called.wait())
    assert (due.calls, also.calls, later.calls) == (1, 1, 0)
    assert live == {later}
    sweep.stop()
    sweep.stop()
    later.due_at = now
    await asyncio.sleep(0.05)
    assert later.calls == 0
