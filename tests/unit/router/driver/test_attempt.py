from dataclasses import replace
from time import monotonic

import pytest

from router.contract.errors import Blame, LegBroken, LegTimeout
from router.contract.instance import Mode
from router.contract.seal import Seal
from router.contract.wire import Waits
from router.core.breaker import BreakerRules
from router.core.burden import Burdens
from router.core.fleet import fold
from router.core.health import Health
from router.core.intake import Endpoint, Intake
from router.core.placement import Placement
from router.core.timing import Deadlines
from router.driver.attempt import Attempt
from router.legs.answer import Mark, Verdict
from tests.support.instances import decode, prefill


class Pool:
    own_lines = b"host: h:1\r\n"

    def __init__(self):
        self.legs = []

    def take(self):
        return None

    def want(self, leg):
        self.legs.append(leg)


class Line:
    def __init__(self):
        self.done = []

    def pause(self):
        self.done.append("pause")

    def resume(self):
        self.done.append("resume")


class Router:
    """As much of one as an attempt needs."""

    def __init__(self, *, cancels_prefill=True):
        self.deadlines = Deadlines()
        self.conduct = type("Conduct", (), {"cancels_prefill": cancels_prefill, "seal": Seal("the key")})
        self.leftovers = set()
        self.pools = {}
        self.health = Health(BreakerRules(failures=1))

    def pool(self, url):
        return self.pools.setdefault(url, Pool())

    def count_take_back(self, status):
        pass


class Exchange:
    deadlines = Deadlines(prefill_s=10.0, prefill_token_s=0.1)
    intake = Intake(Endpoint.CHAT, b'{"model":"m"}' + b" " * 387, "m", False, "")


def attempt(mode=Mode.PUSH, sent_at=5.0, router=None, **conduct):
    members = {m.instance.instance_id: m for m in fold([prefill(), decode()], Burdens()).members}
    first = None if mode is Mode.LOCAL else members["p0"]
    router = router or Router(**conduct)
    placement = Placement(mode, first, members["d0"], "configured")
    return Attempt(router, Exchange(), placement, "req-1.1", sent_at), router, members


def weights(members):
    return [(members[name].burden.requests, members[name].burden.tokens) for name in ("p0", "d0")]


@pytest.mark.parametrize("mode", Mode)
def test_both_instances_weigh_from_the_choice_to_the_end(mode):
    made, _, members = attempt(mode)
    assert weights(members) == [(0, 0) if mode is Mode.LOCAL else (1, 101), (1, 101)]
    made.release_prefill()
    made.release_prefill()
    assert weights(members) == [(0, 0), (1, 101)]
    made.close(fetched=True)
    made.close(fetched=True)
    assert weights(members) == [(0, 0), (0, 0)]


def test_each_leg_goes_to_its_instance():
    made, router, _ = attempt()
    made.send_prefill(5.0)
    made.send_decode(5.0, b"")
    (first,), (second,) = router.pools["http://p0:8000"].legs, router.pools["http://d0:8000"].legs
    assert b'"do_remote_decode":true' in first._request
    assert b'"do_remote_prefill":true' in second._request
    assert b"x-request-id: req-1.1\r\n" in first._request and b"x-request-id: req-1.1\r\n" in second._request


def test_prefills_leg_names_who_may_keep_kv():
    made, router, members = attempt()
    made.placement.keeper = members["d0"]
    made.send_prefill(5.0)
    (leg,) = router.pools["http://p0:8000"].legs
    assert b'"keeper_engine_id":"d0@1","keeper_host":"127.0.0.1","keeper_port":5600' in leg._request


def test_pull_hands_on_what_prefill_said_and_local_nothing():
    made, router, _ = attempt(Mode.PULL)
    made.send_decode(5.0, b'{"said":1}')
    assert b'"kv_transfer_params":{"said":1}}' in router.pools["http://d0:8000"].legs[0]._request
    made, router, _ = attempt(Mode.LOCAL)
    made.send_decode(5.0, b"")
    assert b"kv_transfer_params" not in router.pools["http://d0:8000"].legs[0]._request


def test_cancelling_a_side_frees_it_at_once():
    made, router, members = attempt()
    made.cancel(Blame.DECODE)
    made.send_prefill(5.0)
    made.send_decode(5.0, b"")
    made.cancel(Blame.PREFILL)
    made.cancel(Blame.DECODE)
    assert weights(members) == [(0, 0), (0, 0)]
    assert all(leg.cancelled for pool in router.pools.values() for leg in pool.legs)


def test_a_prefill_that_must_not_be_cancelled_is_left():
    made, router, members = attempt(cancels_prefill=False)
    made.send_prefill(5.0)
    made.cancel(Blame.PREFILL)
    made.close(fetched=True)
    (leg,) = router.pools["http://p0:8000"].legs
    assert not leg.cancelled and weights(members)[0] == (1, 101)
    (leftover,) = router.leftovers
    leftover.on_leg_failed(leg, None)
    assert weights(members) == [(0, 0), (0, 0)] and not router.leftovers


def test_leaving_twice_or_nothing_is_nothing():
    made, router, _ = attempt()
    made.leave_prefill()
    made.send_prefill(5.0)
    made.leave_prefill()
    made.leave_prefill()
    assert len(router.leftovers) == 1


def test_holding_decode_back_before_it_is_sent_is_nothing():
    made, _, _ = attempt()
    made.pause_decode()
    made.resume_decode()
    made.send_decode(5.0, b"")
    leg = made._decode
    leg.connection = line = Line()
    made.pause_decode()
    made.resume_decode()
    assert line.done == ["pause", "resume"]


def taking_back(members, name):
    member = members[name]
    identity = replace(member.instance.kv, takes_back=True)
    return replace(member, instance=replace(member.instance, kv=identity))


def told(router):
    """Whom a take-back was sent to."""
    return [
        url
        for url, pool in router.pools.items()
        for leg in pool.legs
        if leg._request.startswith(b"POST /kv/cancel ") and b'"req-1.1"' in leg._request
    ]


async def test_a_prefill_that_nobody_fetches_is_told_if_it_can_be():
    for takes_back, fetched, urls in ((True, False, ["http://p0:8000"]), (True, True, []), (False, False, [])):
        made, router, members = attempt()
        if takes_back:
            made.placement.prefill = taking_back(members, "p0")
        made.close(fetched=fetched)
        assert told(router) == urls


async def test_a_decode_that_has_not_come_to_its_end_is_told_whatever_was_fetched():
    for sent, ended, urls in ((True, False, ["http://d0:8000"]), (True, True, []), (False, False, [])):
        made, router, members = attempt(Mode.LOCAL)
        made.placement.decode = taking_back(members, "d0")
        if sent:
            made.send_decode(5.0, b"")
            made._decode.ended = ended
        made.close(fetched=True)
        assert told(router) == urls


def test_another_attempt_avoids_whoever_is_to_blame():
    made, _, _ = attempt()
    assert made.avoided(Blame.PREFILL) == {"p0"}
    assert made.avoided(Blame.DECODE) == {"d0"}
    assert made.avoided(Blame.ROUTER) == frozenset()
    made, _, _ = attempt(Mode.LOCAL)
    assert made.avoided(Blame.PREFILL) == {"d0"}


def failure(mark, blamed=Blame.DECODE, rest_s=0.0) -> Verdict:
    return Verdict(LegBroken("No.", side=blamed), None, True, blamed, mark, rest_s)


@pytest.mark.parametrize(
    ("verdict", "shut", "apart"),
    [
        (failure(Mark.NONE), set(), set()),
        (failure(Mark.INSTANCE), {"d0"}, set()),
        (failure(Mark.INSTANCE, Blame.PREFILL), {"p0"}, set()),
        (failure(Mark.BUSY, rest_s=3.0), {"d0"}, set()),
        (failure(Mark.PAIR, Blame.PREFILL), set(), {("p0", "d0")}),
    ],
)
def test_a_failure_is_held_against_whoever_is_at_fault(verdict, shut, apart):
    failed, router, _ = attempt()
    failed.blame(verdict)
    assert (router.health.shut, router.health.apart) == (shut, apart)


@pytest.mark.parametrize(("phase", "held"), [("prefill", set()), ("next_token", {"p0"})])
def test_a_client_that_allows_less_than_others_proves_nothing(phase, held):
    late = LegTimeout("Late.", side=Blame.PREFILL, phase=phase)
    for asked, shut in ((Exchange.deadlines, held), (None, {"p0"})):
        failed, router, _ = attempt()
        router.deadlines = replace(Exchange.deadlines, prefill_s=10.1)
        failed._exchange.intake = replace(Exchange.intake, deadlines=asked)
        failed.blame(Verdict(late, None, True, Blame.PREFILL, Mark.INSTANCE))
        assert router.health.shut == shut


async def test_decode_is_told_how_long_it_may_wait():
    for mode, handed_over in ((Mode.PUSH, b""), (Mode.PULL, b'{"said":1}')):
        made, router, _ = attempt(mode)
        made._exchange.deadlines = replace(Exchange.deadlines, waits=Waits(1.5, 2.5), connect_s=0.5)
        made.send_decode(5.0, handed_over)
        (leg,) = router.pools["http://d0:8000"].legs
        assert leg._request.endswith(b',"registration_timeout_ms":1500,"kv_wait_timeout_ms":2500}}')
        assert leg.connect_s == 0.5


def test_a_good_answer_clears_all_who_had_a_part_in_it():
    failed, router, _ = attempt()
    for blamed in (failure(Mark.INSTANCE), failure(Mark.INSTANCE, Blame.PREFILL), failure(Mark.PAIR)):
        failed.blame(blamed)
    good, _, _ = attempt(router=router, sent_at=monotonic() + 1)
    good.praise_prefill()
    assert router.health.shut == {"d0"} and router.health.apart
    good.praise(ended=False)
    good.praise(ended=True)
    assert not router.health.alert


def test_a_canary_is_released_when_its_attempt_is_closed():
    _, router, _ = attempt()
    router.health.fail("d0", 1.0, 1.0)
    router.health.tick(100.0)
    canary, _, _ = attempt(router=router)
    assert router.health.shut == {"d0"}
    canary.close(fetched=False)
    assert router.health.alert and not router.health.shut


@pytest.mark.parametrize(("left_s", "told_ms"), [(600.0, 10_000 + 101 * 100 + 1000), (3.0, 3000)])
def test_prefill_is_told_when_nobody_waits_for_it_any_more(left_s, told_ms):
    one, router, _ = attempt()
    one.send_prefill(left_s)
    (leg,) = router.pools["http://p0:8000"].legs
    assert b"x-request-deadline-ms: %d\r\n" % told_ms in leg._request
