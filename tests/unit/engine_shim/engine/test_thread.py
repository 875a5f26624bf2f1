import asyncio
import threading

import pytest

from engine_shim.engine.port import SamplingParams, SequenceRequest
from engine_shim.engine.thread import EngineThread
from router.contract.errors import EngineDown
from tests.support.fake_engine import FakeEngine
from tests.support.kitchens import small_layout

REQUEST = SequenceRequest("one", (1, 2, 3), SamplingParams(max_tokens=1))


class BreaksWhen(FakeEngine):
    """Its step breaks once `asked` is set, as the one that is under way does when somebody asks meanwhile."""

    def step(self):
        self.stepping.set()
        assert self.asked.wait(10.0)
        raise RuntimeError("a bug")


@pytest.mark.parametrize(
    "ask",
    [lambda thread: thread.add(REQUEST), lambda thread: thread.num_cached(REQUEST.prompt)],
    ids=["add", "num_cached"],
)
async def test_whoever_asks_an_engine_that_breaks_meanwhile_hears_of_it(ask):
    engine, downs = BreaksWhen(small_layout(), broken=True), []
    engine.stepping, engine.asked = threading.Event(), threading.Event()
    thread = EngineThread(engine, asyncio.get_running_loop(), lambda events: None, downs.append)
    thread.start()
    assert await asyncio.to_thread(engine.stepping.wait, 10.0)
    asking = asyncio.create_task(ask(thread))
    await asyncio.sleep(0)
    engine.asked.set()
    for answer in (asking, ask(thread)):
        with pytest.raises(EngineDown, match="RuntimeError"):
            await asyncio.wait_for(answer, 10.0)
    assert len(downs) == 1
