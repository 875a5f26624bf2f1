from router.core.admission import Admission
from router.core.burden import Burdens
from router.core.fleet import fold
from router.core.placement import Desk, Rules
from router.core.pulse import PulseRules
from router.driver.prober import READY, Prober
from router.driver.router import Conduct, Router
from router.legs.probe import Probe
from tests.support.instances import decode, prefill


async def test_each_start_is_asked_when_due_and_its_answers_are_told(monkeypatch):
    asked = {}
    monkeypatch.setattr(Probe, "ask", lambda self, path, timeout_s: asked.__setitem__(self._pool, (self, path)))
    router = Router(Desk(Rules()), Burdens(), Admission(9, 0), Conduct())
    prober = Prober(router, PulseRules(period_s=100.0, failures=2))
    prober.look()
    assert asked == {}, "nobody is there"
    router.take_fleet(fold([prefill("p0"), decode("d0")], router.burdens, 0.0))
    prober.look()
    p0, d0 = router.pool("http://p0:8000"), router.pool("http://d0:8000")
    assert {pool: path for pool, (_, path) in asked.items()} == {p0: READY, d0: READY}
    probes = dict(asked)
    asked.clear()
    prober.look()
    assert asked == {}, "the answers are awaited"
    probes[p0][0]._end(503)
    assert router.health.state_of("p0") == "not_ready"
    probes[d0][0]._end(200)
    prober.look()
    assert asked == {} and router.health.state_of("d0") == "closed"
    router.take_fleet(fold([prefill("p0", epoch=2), decode("d0")], router.burdens, 0.0))
    prober.look()
    assert list(asked) == [p0], "a new start is asked at once"
    assert router.health.state_of("p0") == "closed"
    probes[p0][0]._on_end = lambda status: prober._on_end(("p0", 1), status)
    probes[p0][0]._end(503)
    assert router.health.state_of("p0") == "closed", "what an older start says is not heard"
