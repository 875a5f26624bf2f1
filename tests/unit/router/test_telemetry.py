import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.contract.ledger import Outcome
from router.core.record import Record
from router.telemetry import MAX_MODELS, Histogram, Telemetry, gauge


def record(**fields) -> Record:
    given = {
        "at": 1.0,
        "request_id": "req-1",
        "client_id": "",
        "model": "m",
        "endpoint": "/v1/completions",
        "stream": True,
        "mode": "push",
        "reason": "configured",
        "attempts": 1,
        "placed_s": 0.0002,
        "sent_s": 0.0001,
        "prefilled_s": 0.2001,
        "first_byte_s": 0.25,
        "last_byte_s": 0.75,
        "ended_s": 0.76,
        "num_events": 12,
        "completion_tokens": 101,
        "status": 200,
        "outcome": Outcome.SERVED,
    }
    return Record(**(given | fields))


def samples(telemetry: Telemetry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(telemetry.render().decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def value(found, name, **labels) -> float | None:
    values = [v for (sample, given), v in found.items() if sample == name and labels.items() <= dict(given).items()]
    assert len(values) <= 1, values
    return values[0] if values else None


def test_a_bucket_includes_its_bound():
    histogram = Histogram((1.0, 2.0))
    for seen in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.add(seen)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.total == 7.5


def test_a_served_stream_is_measured_in_every_phase():
    telemetry = Telemetry(None)
    telemetry.fold(record())
    found = samples(telemetry)
    labels = {"model": "m", "endpoint": "/v1/completions", "stream": "true", "mode": "push"}
    assert value(found, "tandem_ttft_seconds_sum", **labels) == pytest.approx(0.25)
    assert value(found, "tandem_tpot_seconds_sum", **labels) == pytest.approx(0.005)
    assert value(found, "tandem_e2e_seconds_sum", **labels) == pytest.approx(0.76)
    assert value(found, "tandem_router_overhead_seconds_sum", **labels) == pytest.approx(0.0002)
    assert value(found, "tandem_phase_seconds_sum", phase="prefill") == pytest.approx(0.2)
    assert value(found, "tandem_phase_seconds_sum", phase="first_token") == pytest.approx(0.2499)
    assert value(found, "tandem_phase_seconds_sum", phase="stream") == pytest.approx(0.5)
    assert value(found, "tandem_requests_total", outcome="served", code="", **labels) == 1
    assert value(found, "tandem_placement_total", mode="push", reason="configured") == 1


def test_without_usage_events_stand_for_tokens():
    telemetry = Telemetry(None)
    telemetry.fold(record(completion_tokens=0))
    assert value(samples(telemetry), "tandem_tpot_seconds_sum") == pytest.approx(0.05)


def test_one_token_has_no_time_between_tokens():
    telemetry = Telemetry(None)
    telemetry.fold(record(completion_tokens=1))
    assert value(samples(telemetry), "tandem_tpot_seconds_count") is None


def test_plain_and_local_answers_have_no_such_phases():
    telemetry = Telemetry(None)
    telemetry.fold(record(stream=False, prefilled_s=0.0, mode="local", reason="n"))
    found = samples(telemetry)
    assert value(found, "tandem_ttft_seconds_count") is None
    assert value(found, "tandem_phase_seconds_count", phase="prefill") == 0
    assert value(found, "tandem_e2e_seconds_count", mode="local", stream="false") == 1


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.REFUSED, Outcome.ABANDONED])
def test_only_good_answers_are_measured(outcome):
    telemetry = Telemetry(None)
    telemetry.fold(record(outcome=outcome, code="leg_broken"))
    found = samples(telemetry)
    assert value(found, "tandem_e2e_seconds_count") is None
    assert value(found, "tandem_requests_total", outcome=outcome.value, code="leg_broken") == 1


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({"first_byte_s": 0.0, "prefilled_s": 0.0}, "prefill"),
        ({"first_byte_s": 0.0}, "first_token"),
        ({}, "stream"),
    ],
)
def test_clients_that_leave_are_counted_by_phase(fields, phase):
    telemetry = Telemetry(None)
    telemetry.fold(record(outcome=Outcome.ABANDONED, **fields))
    assert value(samples(telemetry), "tandem_cancels_total", phase=phase) == 1


def test_requests_that_differ_in_reason_alone_are_one_sample():
    telemetry = Telemetry(None)
    telemetry.fold(record(mode="local", reason="n"))
    telemetry.fold(record(mode="local", reason="echo_logprobs"))
    found = samples(telemetry)
    assert value(found, "tandem_requests_total", mode="local") == 2
    assert value(found, "tandem_placement_total", reason="n") == 1


def test_retries_are_counted_by_reason():
    telemetry = Telemetry(None)
    telemetry.count_retry("leg_broken")
    telemetry.count_retry("leg_broken")
    assert value(samples(telemetry), "tandem_retries_total", reason="leg_broken") == 2


def test_labels_do_not_grow_with_what_clients_send():
    telemetry = Telemetry(None)
    for number in range(3 * MAX_MODELS):
        telemetry.fold(record(model=f"made-up-{number}", attempts=0, mode="", outcome=Outcome.REFUSED, code="x"))
        telemetry.fold(record(model=f"real-{number}"))
    models = {dict(labels).get("model") for _, labels in samples(telemetry)}
    assert len(models - {None}) <= MAX_MODELS + 1
    assert "made-up-0" not in models and "real-0" in models and "other" in models


def test_gauges_are_read_at_each_scrape():
    telemetry, now = Telemetry(None), [1.0]
    telemetry.watch(lambda: [gauge("tandem_x", "X", [(("a",), now[0])], ("who",))])
    assert value(samples(telemetry), "tandem_x", who="a") == 1
    now[0] = 2.0
    assert value(samples(telemetry), "tandem_x", who="a") == 2


def test_each_record_is_logged():
    logged = []
    Telemetry(logged.append).fold(record())
    assert logged == [record()]
