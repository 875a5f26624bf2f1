import asyncio

import pytest

from router.driver.steady import Steady


async def failing() -> None:
    raise ValueError("a bug")


async def good() -> None:
    pass


async def test_a_step_that_fails_is_told_of_once_until_one_is_good_again(caplog):
    steady = Steady("the watch")
    for step, broken in ((failing, True), (failing, True), (good, False), (failing, True)):
        await steady.take(step())
        assert steady.broken is broken
    assert [record.getMessage()[:18] for record in caplog.records] == ["the watch fails by"] * 2


async def test_whoever_ends_the_task_is_heard():
    async def ended() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Steady("the watch").take(ended())
