import asyncio

import pytest

from router.legs import dialling as dialling_module
from router.legs.connection import Connection
from router.legs.dialling import MAX_DIALS, Dialling
from router.legs.pool import LegPool, PoolLimits
from tests.support.transports import KeptTransport


class Waiting:
    """A leg that notes what it hears."""

    def __init__(self):
        self.cancelled = False
        self.heard = []

    def on_connected(self, connection):
        self.heard.append(connection)

    def on_unreachable(self, reason):
        self.heard.append(reason)


class Scene:
    """A Dialling whose dials end when the test says so."""

    def __init__(self, wait_s: float = 60.0):
        self.pool = LegPool("http://h:1", PoolLimits())
        self.dials = []
        self.kept = []
        self.dialling = Dialling(self.connect, self.kept.append, wait_s)

    async def connect(self):
        dial = asyncio.get_running_loop().create_future()
        self.dials.append(dial)
        return await dial

    async def want(self, count: int) -> list[Waiting]:
        legs = [Waiting() for _ in range(count)]
        for leg in legs:
            self.dialling.want(leg)
        await settle()
        return legs

    async def end(self, number: int, made: object) -> None:
        self.dials[number].set_result(made)
        await settle()

    def connection(self) -> Connection:
        connection = Connection(self.pool)
        connection.connection_made(KeptTransport())
        return connection


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


class Clock:
    """The time of a Dialling, and the timer that it has set."""

    def __init__(self, dialling: Dialling):
        self.now = 1000.0
        self._dialling = dialling

    def pass_s(self, seconds: float) -> None:
        self.now += seconds

    def go_on(self, seconds: float) -> None:
        """Time passes, and the timer is heard when it is due."""
        end = self.now + seconds
        while self._dialling._timer is not None and self._dialling._due <= end:
            self.now = self._dialling._due
            self.ring()
        self.now = end

    def ring(self) -> None:
        """The timer is heard if it is due."""
        if self._dialling._timer is not None and self._dialling._due <= self.now:
            self._dialling._timer.cancel()
            self._dialling._on_late()


@pytest.fixture
def clock(scene, monkeypatch):
    clock = Clock(scene.dialling)
    monkeypatch.setattr(dialling_module, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
async def scene():
    scene = Scene()
    yield scene
    scene.dialling.close()
    await settle()


async def test_so_many_are_dialled_at_a_time_and_the_next_ones_follow(scene):
    legs = await scene.want(MAX_DIALS + 2)
    assert len(scene.dials) == scene.dialling.num_busy == MAX_DIALS
    made = scene.connection()
    await scene.end(7, made)
    assert legs[0].heard == [made], "who has waited longest has it"
    assert len(scene.dials) == MAX_DIALS + 1
    await scene.end(8, scene.connection())
    await scene.end(9, scene.connection())
    assert len(scene.dials) == MAX_DIALS + 2, "as many as wait"


async def test_a_freed_connection_comes_before_a_new_one_which_is_kept(scene):
    first, second = await scene.want(2)
    freed, new, newer = (scene.connection() for _ in range(3))
    assert scene.dialling.serve(freed)
    assert (first.heard, second.heard) == ([freed], [])
    await scene.end(0, new)
    await scene.end(1, newer)
    assert (first.heard, second.heard, scene.kept) == ([freed], [new], [newer])
    assert not scene.dialling.serve(freed), "nobody waits"


async def test_a_dial_that_fails_fails_one_leg_and_another_dial_begins(scene):
    legs = await scene.want(MAX_DIALS + 1)
    await scene.end(5, "refused")
    assert [leg.heard for leg in legs] == [["refused"]] + [[]] * MAX_DIALS
    assert len(scene.dials) == MAX_DIALS + 1


async def test_cancelled_legs_hear_nothing(scene):
    first, second, third = await scene.want(3)
    first.cancelled = second.cancelled = True
    made = scene.connection()
    assert scene.dialling.serve(made)
    third.cancelled = True
    await scene.end(0, "refused")
    assert (first.heard, second.heard, third.heard) == ([], [], [made])


async def test_a_new_connection_of_its_own_goes_to_nobody_else(scene):
    (waiting,) = await scene.want(1)
    again, gone = Waiting(), Waiting()
    scene.dialling.dial(again)
    scene.dialling.dial(gone)
    gone.cancelled = True
    await settle()
    made, other = scene.connection(), scene.connection()
    await scene.end(1, made)
    await scene.end(2, other)
    assert (waiting.heard, again.heard, gone.heard, scene.kept) == ([], [made], [], [other])


async def test_a_line_that_moves_is_waited_in(scene, clock):
    legs = await scene.want(4)
    for number in range(3):
        clock.go_on(40.0)
        await scene.end(number, scene.connection())
        assert [len(leg.heard) for leg in legs] == [1] * (number + 1) + [0] * (3 - number)
    clock.go_on(59.0)
    assert not legs[3].heard
    clock.go_on(1.0)
    assert legs[3].heard == ["it did not accept a connection within 60 s"]


async def test_a_pause_of_this_process_is_not_held_against_the_engine(scene, clock):
    early, middle, late = await scene.want(3)
    for number, leg in enumerate((early, middle)):
        clock.pass_s(61.0)
        clock.ring()
        assert not leg.heard, "nothing has been read since"
        made = scene.connection()
        await scene.end(number, made)
        assert leg.heard == [made]
    clock.pass_s(61.0)
    clock.ring()
    clock.pass_s(61.0)
    clock.ring()
    assert late.heard == ["it did not accept a connection within 60 s"], "once only while nothing comes"


async def test_a_dial_that_a_pause_overran_is_made_once_more(scene, clock):
    legs = [Waiting(), Waiting()]
    for leg in legs:
        scene.dialling.dial(leg)
    await settle()
    clock.pass_s(60.05)
    scene.dials[0].set_exception(TimeoutError())
    await settle()
    assert legs[0].heard == ["it did not accept a connection within 60 s"]
    clock.pass_s(1.0)
    scene.dials[1].set_exception(TimeoutError())
    await settle()
    made = scene.connection()
    await scene.end(2, made)
    assert legs[1].heard == [made]


async def test_nobody_waits_longer_than_the_limit_although_dials_hang():
    scene = Scene(wait_s=0.02)
    legs = await scene.want(MAX_DIALS + 1)
    async with asyncio.timeout(10):
        while not legs[-1].heard:
            await asyncio.sleep(0.001)
    assert [leg.heard for leg in legs] == [["it did not accept a connection within 0.02 s"]] * (MAX_DIALS + 1)
    (later,) = await scene.want(1)
    made = scene.connection()
    await scene.end(0, made)
    assert later.heard == [made]
    scene.dialling.close()


async def test_closing_ends_dials_and_tells_nobody(scene):
    (leg,) = await scene.want(1)
    scene.dialling.close()
    await settle()
    assert (scene.dialling.num_busy, leg.heard) == (0, [])
    assert not scene.dialling.serve(scene.connection())
