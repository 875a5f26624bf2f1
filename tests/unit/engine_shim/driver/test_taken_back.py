"""TakenBack forgets by time and by number, oldest first."""

import pytest

from engine_shim.driver import taken_back
from engine_shim.driver.taken_back import KEEP_FOR_S, TakenBack
from router.contract.errors import StaleAttempt
from router.contract.ids import TransferId

A, B, C = (TransferId(f"req-{name}.1") for name in "abc")


def test_an_attempt_is_refused_until_its_legs_cannot_come_any_more() -> None:
    taken = TakenBack()
    taken.check(A, 0.0)
    taken.add(A, 0.0)
    with pytest.raises(StaleAttempt):
        taken.check(A, KEEP_FOR_S - 1)
    taken.check(A, KEEP_FOR_S)
    taken.check(B, 1.0)


def test_what_is_over_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_back, "MAX_KEPT", 2)
    taken = TakenBack()
    for number, one in enumerate((A, B, C)):
        taken.add(one, float(number))
    taken.check(A, 2.0)
    for one in (B, C):
        with pytest.raises(StaleAttempt):
            taken.check(one, 2.0)
    taken.add(A, KEEP_FOR_S + 100)
    assert list(taken._until) == [A]
