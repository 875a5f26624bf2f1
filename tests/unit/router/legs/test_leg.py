import pytest

from router.contract.errors import Blame, LegBroken, LegUnreachable
from router.legs.leg import Leg
from tests.support.routers import until


class Side(Leg):
    side = Blame.DECODE


class Pool:
    def __init__(self, *connections):
        self.connections, self.dialled, self.wanted = list(connections), [], []

    def take(self):
        return self.connections.pop() if self.connections else None

    def want(self, leg):
        self.wanted.append(leg)

    def dial(self, leg):
        self.dialled.append(leg)


class Line:
    def __init__(self, uses=1, answered=False):
        self.uses, self.answered = uses, answered
        self.sent, self.done = [], []

    def send(self, leg, request):
        self.sent.append(request)

    def abort(self):
        self.done.append("abort")

    def pause(self):
        self.done.append("pause")

    def resume(self):
        self.done.append("resume")


class Owner:
    def __init__(self):
        self.errors = []

    def on_leg_failed(self, leg, error):
        self.errors.append(error)


def test_a_kept_alive_connection_is_used():
    line = Line()
    leg = Side(Owner(), Pool(line))
    leg.send(b"x")
    assert line.sent == [b"x"] and leg.connection is line


async def test_a_leg_in_a_hurry_waits_for_a_connection_no_longer_than_it_may():
    owner, pool = Owner(), Pool()
    hasty, served, refused = (Side(owner, pool) for _ in range(3))
    for leg in (hasty, served, refused):
        leg.connect_s = 0.001
        leg.send(b"x")
    served.on_connected(Line())
    refused.on_unreachable("refused")
    await until(lambda: len(owner.errors) == 2)
    assert [error.code for error in owner.errors] == ["decode_unreachable", "connect_timeout"]
    assert hasty.cancelled and not served.cancelled


def test_without_one_it_waits_for_one_and_sends_when_connected():
    pool, line = Pool(), Line()
    leg = Side(Owner(), pool)
    leg.send(b"x")
    assert pool.wanted == [leg] and not pool.dialled
    leg.on_connected(line)
    assert line.sent == [b"x"]


def test_it_is_held_and_cancelled_by_its_connection():
    line = Line()
    leg = Side(Owner(), Pool(line))
    leg.pause(), leg.resume()
    leg.send(b"x")
    leg.pause(), leg.resume(), leg.cancel(), leg.cancel()
    assert line.done == ["pause", "resume", "abort"]
    assert leg.cancelled


def test_unreachable_names_the_side():
    owner = Owner()
    Side(owner, Pool()).on_unreachable("refused")
    (error,) = owner.errors
    assert isinstance(error, LegUnreachable) and error.side is Blame.DECODE
    assert "decode" in error.message and "refused" in error.message


def test_a_reused_connection_that_closes_without_an_answer_is_tried_once_more():
    owner, pool, stale = Owner(), Pool(), Line(uses=2)
    leg = Side(owner, pool)
    leg.on_connected(stale)
    leg.on_lost(stale, "closed")
    assert pool.dialled == [leg] and not owner.errors
    again = Line(uses=2)
    leg.on_connected(again)
    leg.on_lost(again, "closed")
    assert len(pool.dialled) == 1
    assert isinstance(owner.errors[0], LegBroken)


@pytest.mark.parametrize("line", [Line(uses=1), Line(uses=2, answered=True)])
def test_any_other_loss_is_a_failure(line):
    owner, pool = Owner(), Pool()
    leg = Side(owner, pool)
    leg.on_connected(line)
    leg.on_lost(line, "closed")
    assert not pool.dialled and isinstance(owner.errors[0], LegBroken)


def test_what_to_do_with_an_answer_is_each_sides_own():
    with pytest.raises(NotImplementedError):
        Side(Owner(), Pool()).on_answer(Line(), b"", True)
