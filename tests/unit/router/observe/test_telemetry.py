import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.contract.ledger import Outcome
from router.core.record import Record
from router.observe.families import gauge
from router.observe.telemetry import MAX_VALUES, Telemetry


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
        "first_byte_s": 0.24,
        "content_s": 0.25,
        "last_byte_s": 0.75,
        "ended_s": 0.76,
        "num_events": 11,
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


def test_a_served_stream_is_measured_in_every_phase():
    telemetry = Telemetry()
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
    telemetry = Telemetry()
    telemetry.fold(record(completion_tokens=0))
    assert value(samples(telemetry), "tandem_tpot_seconds_sum") == pytest.approx(0.05)


def test_one_token_has_no_time_between_tokens():
    telemetry = Telemetry()
    telemetry.fold(record(completion_tokens=1))
    assert value(samples(telemetry), "tandem_tpot_seconds_count") is None


def test_plain_and_local_answers_have_no_such_phases():
    telemetry = Telemetry()
    telemetry.fold(record(stream=False, prefilled_s=0.0, mode="local", reason="n"))
    found = samples(telemetry)
    assert value(found, "tandem_ttft_seconds_count") is None
    assert value(found, "tandem_phase_seconds_count", phase="prefill") is None
    assert value(found, "tandem_local_fallbacks_total", reason="n") == 1
    assert value(found, "tandem_e2e_seconds_count", mode="local", stream="false") == 1


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.REFUSED, Outcome.ABANDONED])
def test_only_good_answers_are_measured(outcome):
    telemetry = Telemetry()
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
    telemetry = Telemetry()
    telemetry.fold(record(outcome=Outcome.ABANDONED, **fields))
    assert value(samples(telemetry), "tandem_cancels_total", phase=phase) == 1


def test_requests_that_differ_in_reason_alone_are_one_sample():
    telemetry = Telemetry()
    telemetry.fold(record(mode="local", reason="n"))
    telemetry.fold(record(mode="local", reason="echo_logprobs"))
    found = samples(telemetry)
    assert value(found, "tandem_requests_total", mode="local") == 2
    assert value(found, "tandem_placement_total", reason="n") == 1


def test_retries_are_counted_by_reason():
    telemetry = Telemetry()
    telemetry.count_retry("leg_broken")
    telemetry.count_retry("leg_broken")
    assert value(samples(telemetry), "tandem_retries_total", reason="leg_broken") == 2


def test_labels_do_not_grow_with_what_clients_send():
    telemetry = Telemetry()
    for number in range(3 * MAX_VALUES):
        telemetry.fold(record(model=f"made-up-{number}", attempts=0, mode="", outcome=Outcome.REFUSED, code="x"))
        telemetry.fold(record(model=f"real-{number}"))
    models = {dict(labels).get("model") for _, labels in samples(telemetry)}
    assert len(models - {None}) <= MAX_VALUES + 1
    assert "made-up-0" not in models and "real-0" in models and "other" in models


def test_gauges_are_read_at_each_scrape():
    telemetry, now = Telemetry(), [1.0]
    telemetry.watch(lambda: [gauge("tandem_x", "X", [(("a",), now[0])], ("who",))])
    assert value(samples(telemetry), "tandem_x", who="a") == 1
    now[0] = 2.0
    assert value(samples(telemetry), "tandem_x", who="a") == 2


def test_everyone_who_is_told_hears_of_each_record():
    first, second = [], []
    telemetry = Telemetry(first.append, second.append)
    telemetry.fold(record())
    assert first == second == [record()]
    assert telemetry.recent.newest(9) == [record()]


def test_tokens_tell_where_their_number_is_from():
    telemetry = Telemetry()
    telemetry.fold(record(prompt_tokens=7))
    telemetry.fold(record(completion_tokens=0))
    found = samples(telemetry)
    assert value(found, "tandem_prompt_tokens_total", model="m") == 7
    assert value(found, "tandem_completion_tokens_total", model="m", source="usage") == 101
    assert value(found, "tandem_completion_tokens_total", model="m", source="events") == 11


def test_error_codes_of_engines_do_not_grow_without_bound():
    telemetry = Telemetry()
    for number in range(3 * MAX_VALUES):
        telemetry.fold(record(outcome=Outcome.FAILED, code=f"odd-{number}"))
        telemetry.count_retry(f"odd-{number}")
    found = samples(telemetry)
    codes = {dict(labels).get("code") for _, labels in found} - {None}
    assert len(codes) <= MAX_VALUES + 1 and "other" in codes
    assert (
        len({dict(labels).get("reason") for name, labels in found if name == "tandem_retries_total"}) <= MAX_VALUES + 1
    )
    assert value(found, "tandem_retries_total", reason="other") > MAX_VALUES


def test_a_rendezvous_is_told_by_who_came_first():
    telemetry = Telemetry()
    telemetry.fold(record(seats_s=0.05, kv_s=0.16))
    telemetry.fold(record(seats_s=0.23, kv_s=0.002))
    telemetry.fold(record(seats_s=0.01, kv_s=0.03, mode="pull"))
    telemetry.fold(record())
    found = samples(telemetry)
    assert value(found, "tandem_rendezvous_total", first="registered") == 1
    assert value(found, "tandem_rendezvous_total", first="prefilled") == 1
    assert value(found, "tandem_rendezvous_wait_seconds_sum", waited="decode") == pytest.approx(0.15)
    assert value(found, "tandem_rendezvous_wait_seconds_sum", waited="prefill") == pytest.approx(0.03)
    assert value(found, "tandem_overlap_gained_seconds_sum") == pytest.approx(0.05 + 0.2)
    assert value(found, "tandem_phase_seconds_sum", phase="transfer", mode="push") == pytest.approx(0.01 + 0.002)
    assert value(found, "tandem_phase_seconds_sum", phase="transfer", mode="pull") == pytest.approx(0.03)


def test_metrics_are_what_prometheus_reads():
    telemetry = Telemetry()
    telemetry.fold(record(seats_s=0.05, kv_s=0.16))
    telemetry.fold(record(model='q"\\\n', outcome=Outcome.FAILED, code="leg_broken"))
    for family in text_string_to_metric_families(telemetry.render().decode()):
        assert family.documentation and family.type in ("histogram", "counter", "gauge"), family.name
