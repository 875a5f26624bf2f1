from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from router.workers.merge import lasting, merge, take


def families(requests: float, in_flight: float, instances: float, fast: float):
    counter = CounterMetricFamily("tandem_requests", "Over", labels=("model",))
    counter.add_metric(("m",), requests)
    histogram = HistogramMetricFamily("tandem_e2e_seconds", "Time", labels=("model",))
    histogram.add_metric(("m",), [("0.1", fast), ("+Inf", requests)], requests * 2)
    return take(
        [
            counter,
            histogram,
            GaugeMetricFamily("tandem_requests_in_flight", "Now", in_flight),
            GaugeMetricFamily("tandem_instances", "Seen", instances),
        ]
    )


def values(metrics):
    return {(s.name, *s.labels.values()): s.value for metric in metrics for s in metric.samples}


def test_counters_histograms_and_what_a_worker_has_add_up_and_what_all_see_is_the_largest():
    merged = values(merge([families(3, 1, 2, 1), families(4, 5, 3, 2)]))
    assert merged == {
        ("tandem_requests_total", "m"): 7,
        ("tandem_e2e_seconds_bucket", "m", "0.1"): 3,
        ("tandem_e2e_seconds_bucket", "m", "+Inf"): 7,
        ("tandem_e2e_seconds_count", "m"): 7,
        ("tandem_e2e_seconds_sum", "m"): 14,
        ("tandem_requests_in_flight",): 6,
        ("tandem_instances",): 3,
    }


def test_of_a_dead_worker_the_gauges_are_gone():
    assert {family.name for family in lasting(families(1, 1, 1, 1))} == {"tandem_requests", "tandem_e2e_seconds"}


def test_labels_that_only_one_has_stay():
    other = CounterMetricFamily("tandem_requests", "Over", labels=("model",))
    other.add_metric(("n",), 1)
    assert values(merge([families(3, 0, 0, 0), take([other])]))["tandem_requests_total", "n"] == 1
