import pytest

from router.contract.errors import StoreDown
from router.driver import orders as module
from router.driver.orders import Orders
from tests.support.tasks import outlives_errors


class Place:
    """What routers share."""

    def __init__(self):
        self.orders, self.away, self.since, self.losses = {}, False, "", 0

    def lose(self):
        self.orders, self.since, self.losses = {}, "", self.losses + 1

    async def give(self, name, value):
        self._check()
        self.since = f"after {self.losses} losses"
        if value:
            self.orders[name] = value
        else:
            self.orders.pop(name, None)

    async def read(self):
        self._check()
        return self.since, dict(self.orders)

    def _check(self):
        if self.away:
            raise StoreDown("away")


@pytest.fixture
def place():
    return Place()


def router(place):
    """(Orders, what they made it obey)."""
    obeyed = []
    return Orders(place, lambda drained, mode: obeyed.append((set(drained), mode))), obeyed


async def test_an_order_holds_at_once_and_others_learn_of_it(place):
    (one, here), (other, there) = router(place), router(place)
    assert await one.drain("d0", draining=True) is True
    assert here == [({"d0"}, "")]
    await other.look()
    assert there == [({"d0"}, "")]
    assert await other.set_mode("pull") and await other.drain("d0", draining=False)
    await one.look()
    assert here[-1] == (set(), "pull") and (one.drained, one.mode) == (frozenset(), "pull")
    assert await one.set_mode("") and place.orders == {}


async def test_what_has_not_changed_is_not_obeyed_again(place):
    one, here = router(place)
    await one.drain("d0", draining=True)
    await one.drain("d0", draining=True)
    await one.look()
    assert len(here) == 1


async def test_while_the_place_is_away_orders_hold_here_and_are_shared_later(place):
    (one, here), (other, there) = router(place), router(place)
    await one.drain("d0", draining=True)
    place.away = True
    assert await one.drain("d1", draining=True) is False
    assert await one.drain("d0", draining=False) is False
    assert here[-1] == ({"d1"}, "")
    place.away = False
    await other.look()
    assert there == [({"d0"}, "")], "not told yet"
    await one.look()
    assert here[-1] == ({"d1"}, "") and place.orders == {"drain d1": "1"}


async def test_a_place_that_has_lost_its_memory_is_told_again(place):
    (one, here), (other, there) = router(place), router(place)
    await one.drain("d0", draining=True)
    await other.set_mode("pull")
    await one.look()
    place.lose()
    await one.look()
    assert place.orders == {"drain d0": "1", "mode": "pull"} and here[-1] == ({"d0"}, "pull")
    place.lose()
    late, _ = router(place)
    await late.drain("d9", draining=True)
    await other.look()
    assert there[-1] == ({"d0", "d9"}, "pull"), "what a newcomer has told does not hide the loss"


async def test_what_was_withdrawn_is_not_told_again(place):
    (one, _), (other, there) = router(place), router(place)
    await one.drain("d0", draining=True)
    await other.look()
    await one.drain("d0", draining=False)
    await other.look()
    assert there == [({"d0"}, ""), (set(), "")] and place.orders == {}


async def test_without_a_place_orders_hold_for_this_process():
    one, here = router(None)
    assert await one.drain("d0", draining=True) is False
    await one.look()
    await one.run()
    assert here == [({"d0"}, "")]


async def test_a_value_that_cannot_be_read_does_not_end_the_task(place, monkeypatch):
    monkeypatch.setattr(module, "PERIOD_S", 0.001)
    one, _ = router(place)
    await outlives_errors(monkeypatch, place, "read", one.run())
