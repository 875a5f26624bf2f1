import asyncio
import gc

import pytest

from router import background, build
from router.background import Background
from router.contract.errors import BadSettings, Impossible
from router.driver.watch import FleetWatch
from router.process.listeners import listen
from router.settings import Settings


async def failing(error: Exception) -> None:
    raise error


async def test_the_first_death_is_told_once_and_the_others_go_on(caplog):
    told, tasks, lives = [], Background(), asyncio.Event()
    tasks.on_failure = lambda: told.append(tasks.failure)
    tasks.start("watch", failing(ValueError("x")))
    tasks.start("ledger", failing(KeyError("y")))
    tasks.start("prober", lives.wait())
    await asyncio.sleep(0)
    assert [str(one) for one in told] == ["The watch of the router has failed (ValueError); the lines above say why."]
    assert isinstance(tasks.failure, Impossible)
    assert [record.levelname for record in caplog.records] == ["CRITICAL", "CRITICAL"]
    await tasks.end()


async def test_what_ends_by_itself_or_is_ended_is_no_failure():
    tasks = Background()
    tasks.start("governor", asyncio.sleep(0))
    tasks.start("watch", asyncio.sleep(60))
    await asyncio.sleep(0)
    await tasks.end()
    assert tasks.failure is None


def test_a_set_up_that_must_change_is_told_as_it_is():
    tasks = Background()
    tasks.fail("start", BadSettings("No."))
    assert isinstance(tasks.failure, BadSettings)


@pytest.fixture
def _collections():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("_collections")
@pytest.mark.parametrize("method", ["run", "look"], ids=["while it serves", "at the start"])
async def test_a_router_whose_watch_of_the_fleet_dies_ends(monkeypatch, method):
    async def dies(watch: FleetWatch) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(FleetWatch, method, dies)
    settings = Settings(decode=("http://127.0.0.1:1",), probe_s=0.0, access_log=False)
    async with asyncio.timeout(20):
        with pytest.raises(Impossible, match="has failed"):
            await build.serve(settings, [listen("127.0.0.1", 0)])


async def test_tasks_end_although_one_keeps_its_first_cancellation_for_itself(monkeypatch):
    monkeypatch.setattr(background, "CANCEL_AGAIN_S", 0.01)
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
        await background.end_all([task])
    assert (len(heard), task.cancelled()) == (2, True)
