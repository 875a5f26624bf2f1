import pytest

from router.contract.errors import StoreDown
from router.store import keys
from router.store.connection import connect
from router.store.orders import KEEP_S, OrderStore


@pytest.mark.needs("redis")
async def test_orders_are_given_read_and_withdrawn_and_kept_for_a_while(redis_url, namespace):
    redis = connect(redis_url)
    one, other = OrderStore(redis, namespace), OrderStore(redis, namespace)
    assert await one.read() == ("", {})
    await one.give("drain d0", "1")
    await other.give("mode", "pull")
    since, orders = await one.read()
    assert since and orders == {"drain d0": "1", "mode": "pull"}
    assert KEEP_S - 5 < await redis.ttl(keys.fleet_orders(namespace)) <= KEEP_S
    await one.give("drain d0", "")
    assert await other.read() == (since, {"mode": "pull"})
    await one.give("mode", "")
    assert await other.read() == (since, {})
    await redis.delete(keys.fleet_orders(namespace))
    assert await other.read() == ("", {})
    await one.give("mode", "pull")
    assert (await other.read())[0] not in ("", since)
    await redis.aclose()


async def test_a_store_that_is_away_is_said_to_be():
    redis = connect("redis://127.0.0.1:1/0")
    with pytest.raises(StoreDown):
        await OrderStore(redis, "x").give("mode", "pull")
    await redis.aclose()
