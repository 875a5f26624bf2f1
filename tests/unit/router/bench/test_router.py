import pytest

from router.bench import router as module
from router.bench.router import _settle


class Busy:
    """A target that still has so many looks' worth of an earlier load to do."""

    def __init__(self, looks: int) -> None:
        self._looks, self.asked = looks, 0

    def cpu_s(self) -> float:
        self.asked += 1
        return float(min(self.asked, self._looks))


@pytest.mark.parametrize(("looks", "asked"), [(1, 2), (6, 8), (1000, 100)])
async def test_a_load_begins_when_the_last_one_is_over_or_after_a_while(monkeypatch, looks, asked):
    monkeypatch.setattr(module, "SETTLED_S", 0.001)
    monkeypatch.setattr(module, "SETTLE_S", 0.05)
    target = Busy(looks)
    await _settle(target)
    assert target.asked == asked
