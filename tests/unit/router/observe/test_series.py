import pytest

from router.core.record import Record
from router.core.tail import Tail
from router.observe.series import Phases, Series


def record(**fields) -> Record:
    given = {"door_s": 0.001, "sent_s": 0.002, "placed_s": 0.003, "prefilled_s": 0.102, "content_s": 0.2}
    given |= {"last_byte_s": 0.5, "ended_s": 0.5, "num_events": 4, "mode": "push"}
    return Record(1.0, "req-1", "", "m", "/v1/completions", **({"stream": True} | given | fields))


def test_an_answer_of_several_sequences_has_no_time_per_token():
    series = Series()
    series.add(record(reason="n"), None)
    assert (sum(series.tpot.counts), sum(series.ttft.counts)) == (0, 1)
    series.add(record(), None)
    assert series.tpot.total == pytest.approx(0.1)


def test_a_stream_without_content_has_no_first_token():
    series = Series()
    series.add(record(content_s=0.0), None)
    assert (sum(series.ttft.counts), sum(series.tpot.counts), sum(series.e2e.counts)) == (0, 0, 1)


def test_the_queue_is_no_overhead_of_the_router():
    series, phases = Series(), Phases()
    waited = record(queued_s=1.0, sent_s=1.002, placed_s=1.003)
    series.add(waited, None)
    phases.add(waited)
    assert series.overhead.total == pytest.approx(0.003)
    assert phases.of["queue"].total == pytest.approx(1.0)
    assert phases.of["place"].total == pytest.approx(0.001)


def test_decode_may_answer_before_prefill_does():
    phases = Phases()
    phases.add(record(prefilled_s=0.0, seats_s=0.01, kv_s=0.1))
    assert phases.first == {"registered": 1, "prefilled": 0}
    assert phases.of["transfer"].total == 0.0
    assert phases.of["first_token_after_kv"].total == pytest.approx(0.2 - 0.112)


def test_gaps_are_those_of_good_streams():
    series, passed = Series(), Tail()
    for at in (0.2, 0.207, 0.5):
        passed.feed(b'data: {"choices":[{"text":"x"}]}\n\n', at)
    series.add(record(), passed)
    assert (sum(series.itl.counts), series.itl.total) == (2, pytest.approx(0.3))
