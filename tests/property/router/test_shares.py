"""Replicas that share a budget never let in more than it, whatever order they ask, work, die and lose answers in."""

from collections.abc import Coroutine

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.shares import fair_share
from router.driver.sharing import Shared, Sharing
from tests.support.share_store import ShareClient, ShareServer

LEASE_S = 10.0
OWNERS = ("a", "b", "c")


def finish(coroutine: Coroutine[None, None, None]) -> None:
    """Run it to its end; nothing in this world ever waits."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise AssertionError("it waits")


class Replica:
    """A replica as far as budgets go."""

    def __init__(self, server: ShareServer, owner: str, requests: int, tokens: int) -> None:
        self.client = ShareClient(server, owner)
        self.flying: list[int] = []
        self.allowed = (0, 0)
        budget = Shared(requests, tokens, lambda: (len(self.flying), sum(self.flying)), self.allow)
        self.sharing = Sharing(self.client, owner, lambda: {"total": budget}, LEASE_S)
        self.look()

    def look(self) -> None:
        self.asked_at = self.client.server.now
        finish(self.sharing.look())

    def allow(self, requests: int, tokens: int) -> None:
        self.allowed = requests, tokens

    def admit(self, tokens: int) -> None:
        if len(self.flying) < self.allowed[0] and sum(self.flying) + tokens <= self.allowed[1]:
            self.flying.append(tokens)


class World:
    """Three replicas and the store; each operation is a method."""

    totals = (7, 100)

    def __init__(self) -> None:
        self.server = ShareServer()
        self.replicas: dict[str, Replica] = {}

    def look(self, owner: str, number: int) -> None:
        self.server.now += 0.25
        if owner in self.replicas:
            self.replicas[owner].look()
        else:
            self.replicas[owner] = Replica(self.server, owner, *self.totals)

    def work(self, owner: str, number: int) -> None:
        for _ in range(number):
            self.replicas[owner].admit(1 + number * number)

    def finish(self, owner: str, number: int) -> None:
        del self.replicas[owner].flying[:number]

    def die(self, owner: str, number: int) -> None:
        """Its requests die with it; its share returns when its lease ends."""
        del self.replicas[owner]

    def resign(self, owner: str, number: int) -> None:
        replica = self.replicas.pop(owner)
        replica.flying.clear()
        finish(replica.sharing.resign())

    def lose_answers(self, owner: str, number: int) -> None:
        self.replicas[owner].client.loses_answers = number > 4

    def wait(self, owner: str, number: int) -> None:
        for _ in range(number):
            self.server.now += LEASE_S / 3
            self._everybody_asks()

    def outage(self, owner: str, number: int) -> None:
        """For everybody; what is held goes on."""
        self.server.down = True
        for replica in self.replicas.values():
            replica.look()
            replica.admit(1)
        self.server.now += 4.0 * number
        self.server.down = False
        if not self.server.seen:
            self.server.lost_memory_at = self.server.now  # it was away because it was started anew

    def lose_memory(self, owner: str, number: int) -> None:
        self.server.forget()

    def run(self, operation: str, owner: str, number: int) -> None:
        """The operation, and then whoever has not asked for a third of a lease asks."""
        if operation == "look" or owner in self.replicas:
            getattr(self, operation)(owner, number)
            if operation != "outage":
                self._everybody_asks()

    def _everybody_asks(self) -> None:
        for replica in self.replicas.values():
            if self.server.now - replica.asked_at >= LEASE_S / 3:
                replica.client.loses_answers = False
                replica.look()

    def check(self) -> None:
        flying = [tokens for replica in self.replicas.values() for tokens in replica.flying]
        assert len(flying) <= self.totals[0]
        assert sum(flying) <= self.totals[1]


OFTEN = ("look", "look", "work", "work", "finish")
OPERATIONS = (*OFTEN, *OFTEN, "die", "resign", "lose_answers", "wait", "outage", "lose_memory")


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.sampled_from(OWNERS), st.integers(1, 8)), min_size=30))
@settings(max_examples=150, deadline=None)
def test_together_they_never_let_in_more_than_the_total(operations):
    world = World()
    for owner in OWNERS:
        world.look(owner, 1)
    for operation in operations:
        world.run(*operation)
        world.check()


@given(
    st.integers(0, 1000),
    st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 500), min_size=1),
    st.integers(0),
)
def test_parts_add_up_and_nobody_is_cut_below_an_equal_part(total, wants, turn):
    parts = {owner: fair_share(total, wants, owner, turn) for owner in wants}
    assert sum(parts.values()) == total
    for owner, part in parts.items():
        assert part >= min(wants[owner], total // len(wants))


def test_one_unit_goes_round():
    wants = {"a": 1, "b": 1, "c": 1}
    got = [[owner for owner in wants if fair_share(1, wants, owner, turn)] for turn in range(3)]
    assert sorted(got) == [["a"], ["b"], ["c"]]


def test_shares_move_to_where_they_are_wanted():
    server = ShareServer()
    busy, idle = Replica(server, "a", 100, 1000), Replica(server, "b", 100, 1000)
    for _ in range(12):
        server.now += 0.25
        for _ in range(100):
            busy.admit(1)
        busy.look()
        idle.look()
    assert len(busy.flying) >= 90
    assert busy.allowed[0] + idle.allowed[0] <= 100
