from router.driver import sharing as module
from router.driver.sharing import Shared, Sharing
from tests.support.share_store import ShareClient, ShareServer
from tests.support.tasks import outlives_errors


class Budgeted:
    """A replica with one shared budget of 10 requests and 100 tokens."""

    def __init__(self, server: ShareServer, owner: str = "a", requests: int = 10, tokens: int = 100) -> None:
        self.used = (0, 0)
        self.allowed: tuple[int, int] | None = None
        self.client = ShareClient(server, owner)
        shared = Shared(requests, tokens, lambda: self.used, self.allow)
        self.sharing = Sharing(self.client, owner, lambda: {"total": shared}, lease_s=10.0)

    def allow(self, requests: int, tokens: int) -> None:
        self.allowed = requests, tokens


async def test_a_replica_that_is_alone_has_it_all():
    one = Budgeted(ShareServer())
    await one.sharing.look()
    assert one.allowed == (10, 100)
    assert one.sharing.shares() == {"total": (10, 100)}


async def test_idle_replicas_have_equal_parts_after_a_round():
    server = ShareServer()
    one, other = Budgeted(server, "a"), Budgeted(server, "b")
    for _ in range(3):
        await one.sharing.look()
        await other.sharing.look()
    assert (one.allowed, other.allowed) == ((5, 50), (5, 50))


async def test_without_the_store_the_held_share_goes_on_and_says_so():
    server = ShareServer()
    one, other = Budgeted(server, "a"), Budgeted(server, "b")
    for _ in range(3):
        await one.sharing.look()
        await other.sharing.look()
    one.client.cut = True
    await one.sharing.look()
    assert (one.allowed, one.sharing.degraded) == ((5, 50), True)
    one.client.cut = False
    await one.sharing.look()
    assert not one.sharing.degraded


async def test_a_replica_that_was_never_answered_has_only_the_whole_to_go_by():
    server = ShareServer(down=True)
    one = Budgeted(server)
    await one.sharing.look()
    assert (one.allowed, one.sharing.degraded) == ((10, 100), True)


async def test_what_was_given_back_is_the_others_after_a_round():
    server = ShareServer()
    one, other = Budgeted(server, "a"), Budgeted(server, "b")
    await one.sharing.look()
    await other.sharing.look()
    await one.sharing.resign()
    await other.sharing.look()
    await other.sharing.look()
    assert other.allowed == (10, 100)


async def test_a_share_comes_back_with_the_lease_of_a_dead_replica_and_not_before():
    server = ShareServer()
    one, other = Budgeted(server, "a"), Budgeted(server, "b")
    await one.sharing.look()
    for now in (0.0, 4.0, 8.0):
        server.now = now
        await other.sharing.look()
        assert other.allowed == (0, 0)
    server.now = 10.0
    await other.sharing.look()
    await other.sharing.look()
    assert other.allowed == (10, 100)


async def test_what_has_no_limit_stays_without():
    one = Budgeted(ShareServer(), requests=-1, tokens=50)
    one.used = (1000, 10)
    await one.sharing.look()
    assert one.allowed == (-1, 50)


async def test_a_value_that_cannot_be_read_does_not_end_the_task(monkeypatch):
    monkeypatch.setattr(module, "PERIOD_S", 0.001)
    one = Budgeted(ShareServer())
    await outlives_errors(monkeypatch, ShareClient, "ask", one.sharing.run())
