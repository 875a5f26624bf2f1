import dataclasses
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.bench.measures import Objectives, Record, percentile, spread, summarize

GOOD = Record(
    index=0,
    due_s=1.0,
    sent_s=1.001,
    ended_s=2.0,
    output_at_s=(1.1, 1.2, 1.4),
    prompt_tokens=10,
    output_tokens=4,
    status=200,
)


def but(**changes):
    return dataclasses.replace(GOOD, **changes)


def test_latencies_run_from_the_instant_a_request_was_due():
    assert GOOD.ttft_s == pytest.approx(0.1)
    assert GOOD.e2e_s == pytest.approx(1.0)
    assert but(sent_s=1.09).ttft_s == pytest.approx(0.1)


def test_tpot_divides_by_the_tokens_that_the_server_counted():
    assert GOOD.tpot_s == pytest.approx(0.3 / 3)
    assert but(output_tokens=1).tpot_s is None
    assert but(output_at_s=(1.1,)).tpot_s is None
    assert but(output_at_s=()).ttft_s is None


@given(st.lists(st.floats(-1e6, 1e6), min_size=2), st.integers(1, 99))
def test_percentiles_agree_with_the_standard_library(values, percent):
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(sorted(values), percent / 100) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_percentiles_of_one_value_and_of_the_ends():
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([1.0, 2.0, 3.0], 0.0) == 1.0
    assert percentile([1.0, 2.0, 3.0], 1.0) == 3.0


def test_a_spread_is_in_milliseconds_and_leaves_absent_values_out():
    found = spread([0.003, None, 0.001])
    assert (found.mean_ms, found.p50_ms, found.max_ms, found.count) == (2.0, 2.0, 3.0, 2)
    assert spread([None]) is None


@pytest.mark.parametrize(
    ("objectives", "record", "met"),
    [
        (Objectives(), GOOD, True),
        (Objectives(ttft_ms=101, tpot_ms=101), GOOD, True),
        (Objectives(ttft_ms=99), GOOD, False),
        (Objectives(tpot_ms=99), GOOD, False),
        (Objectives(tpot_ms=99), but(output_tokens=1), True),
        (Objectives(), but(failure="no_pair"), False),
    ],
)
def test_objectives(objectives, record, met):
    assert objectives.met_by(record) is met


def test_a_summary_counts_failures_apart():
    failed = but(index=1, due_s=2.0, sent_s=2.2, ended_s=5.0, status=503, failure="no_pair", output_at_s=())
    summary = summarize([GOOD, failed], Objectives(ttft_ms=200))
    assert (summary.num_requests, summary.num_whole, summary.num_late) == (2, 1, 1)
    assert summary.failures == {"no_pair": 1}
    assert summary.duration_s == 4.0
    assert summary.requests_per_s == summary.goodput_per_s == 0.25
    assert summary.output_tokens_per_s == 1.0
    assert (summary.prompt_tokens_mean, summary.output_tokens_mean) == (10, 4)
    assert summary.ttft.count == summary.e2e.count == 1
    assert summary.itl.count == 2
    assert summary.itl.max_ms == pytest.approx(200)


def test_a_summary_of_failures_only_has_no_latencies():
    summary = summarize([but(failure="leg_timeout")], Objectives())
    assert summary.ttft is summary.tpot is summary.itl is summary.e2e is None
    assert summary.output_tokens_mean == 0.0
