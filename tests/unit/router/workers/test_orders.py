import pytest

from router.contract.errors import StoreDown
from router.workers.orders import OrderFile


async def test_workers_share_orders_by_a_file(tmp_path):
    one, other = OrderFile(tmp_path), OrderFile(tmp_path)
    assert await other.read() == ("", {})
    await one.give("drain d0", "1")
    await other.give("mode", "pull")
    assert await one.read() == ("", {"drain d0": "1", "mode": "pull"})
    await one.give("mode", "")
    assert await other.read() == ("", {"drain d0": "1"})


async def test_a_folder_that_is_gone_is_a_place_that_is_away(tmp_path):
    with pytest.raises(StoreDown):
        await OrderFile(tmp_path / "none").give("mode", "pull")
