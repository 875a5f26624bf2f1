from router.bench.measures import Objectives, Record, summarize
from router.bench.report import describe, table

RECORD = Record(0, 0.0, 0.0, 1.0, (0.1, 0.2), 10, 3, 200)
FAILED = Record(1, 0.0, 0.0, 1.0, (), 0, 0, 503, "no_pair")


def test_columns_are_aligned():
    assert table([["a", "bb"], ["ccc", "d"]]).splitlines() == ["a    bb", "---  --", "ccc   d"]


def test_a_load_is_described_with_its_failures():
    text = describe(summarize([RECORD, FAILED], Objectives()))
    assert "1 of 2 requests answered whole in 1.00 s (0 sent late)" in text
    assert "failures: 1 x no_pair" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith(("TTFT", "TPOT", "E2E"))}
    assert rows == {
        "TTFT": ["100.0"] * 5 + ["1"],
        "TPOT": ["50.0"] * 5 + ["1"],
        "E2E": ["1000.0"] * 5 + ["1"],
    }


def test_failures_only_have_no_latency_rows():
    text = describe(summarize([FAILED], Objectives()))
    assert "TTFT" not in text
    assert "0 of 1 requests answered whole" in text
