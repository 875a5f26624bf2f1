from router.core.admission import Admission
from router.core.burden import Burdens
from router.core.fleet import fold
from router.core.late import LateChoice
from router.core.placement import Desk, Rules
from router.driver.conduct import Conduct
from router.driver.router import Router
from router.vitals import health_metrics
from tests.support.instances import decode, prefill


def values(metrics) -> dict:
    return {(s.name, *s.labels.values()): s.value for metric in metrics for s in metric.samples}


def test_instances_are_counted_by_state_and_named_when_they_are_not_well():
    router = Router(Desk(Rules()), Burdens(), Admission(9, 0), Conduct())
    router.take_fleet(fold([prefill("p0"), decode("d0")], router.burdens))
    for _ in range(3):
        router.health.fail("d0", 1.0, 1.0)
    router.retries_denied = 4
    seen = values(health_metrics(router))
    assert seen["tandem_instance_health", "closed"] == 1 and seen["tandem_instance_health", "open"] == 1
    assert seen["tandem_instance_shut", "d0", "open"] == 1 and ("tandem_instance_shut", "p0", "closed") not in seen
    assert seen["tandem_breaker_trips_total", "instance"] == 1
    assert seen["tandem_retries_denied_total", "budget"] == 4
    assert seen["tandem_late_choices_total", "ahead"] == 0
    router.desk.rules = Rules(late=LateChoice(0.1))
    router.desk.rules.late.choices["ahead"] += 2
    assert values(health_metrics(router))["tandem_late_choices_total", "ahead"] == 2
