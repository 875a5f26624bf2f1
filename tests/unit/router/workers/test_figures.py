import os

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from router.workers.figures import FRESH_S, Figures, Place


class Worker:
    def __init__(self, folder, slot: int) -> None:
        self.requests, self.in_flight = 0, 0
        self.figures = Figures(Place(folder, slot, 2), self.collect)

    def collect(self):
        return [
            CounterMetricFamily("tandem_requests", "Over", self.requests),
            GaugeMetricFamily("tandem_requests_in_flight", "Now", self.in_flight),
        ]

    def shown(self) -> tuple[float, float, float]:
        families = text_string_to_metric_families(self.figures.render().decode())
        found = {sample.name: sample.value for family in families for sample in family.samples}
        return found["tandem_requests_total"], found["tandem_requests_in_flight"], found["tandem_workers"]


def test_either_worker_shows_the_sum(tmp_path):
    one, other = Worker(tmp_path, 0), Worker(tmp_path, 1)
    one.requests, one.in_flight, other.requests, other.in_flight = 3, 1, 4, 2
    other.figures.save()
    assert one.shown() == (7, 3, 2)
    assert other.shown() == (7, 3, 2)


def test_a_worker_that_has_not_begun_is_missing(tmp_path):
    one = Worker(tmp_path, 0)
    one.requests = 3
    assert one.shown() == (3, 0, 1)


def test_what_has_been_shown_is_never_lost_with_its_worker(tmp_path):
    one, other = Worker(tmp_path, 0), Worker(tmp_path, 1)
    one.requests, one.in_flight, other.requests = 3, 5, 4
    other.figures.save()
    assert one.shown() == (7, 5, 2)
    assert other.shown() == (7, 5, 2)  # no save of `one` since: what it has shown was in its file before
    reborn = Worker(tmp_path, 0)
    reborn.requests = 10
    assert reborn.shown() == (17, 0, 2)
    reborn_again = Worker(tmp_path, 0)
    assert reborn_again.shown() == (17, 0, 2)


def test_a_dead_worker_keeps_its_counters_and_loses_its_gauges(tmp_path):
    one, other = Worker(tmp_path, 0), Worker(tmp_path, 1)
    one.requests, one.in_flight = 3, 5
    one.figures.save()
    path = tmp_path / "figures-0"
    long_ago = path.stat().st_mtime - FRESH_S - 1
    os.utime(path, (long_ago, long_ago))
    assert other.shown() == (3, 0, 1)
