import json

from router.cli.doctor_findings import Pair, PairVerdict, Report, Run


def test_a_report_is_well_until_something_fails():
    report = Report()
    report.good("store", "It answers.")
    report.warn("store", "It is slow.")
    assert report.is_well
    report.fail("router", "It is away.")
    assert not report.is_well


def test_each_finding_is_one_aligned_line():
    report = Report()
    report.good("store", "It answers.")
    report.fail("prefill-0 -> decode-0", "Nothing arrives.")
    assert report.text().splitlines() == [
        "ok    store                  It answers.",
        "FAIL  prefill-0 -> decode-0  Nothing arrives.",
    ]


def test_a_run_tells_size_time_and_rate():
    assert Run(8 << 20, 3, 0.004, 0).text == "8 MiB 4000 us 2.10 GB/s"
    assert Run(64 << 10, 1, 0.0001, 0).text == "64 KiB 100 us 0.66 GB/s"
    assert Run(256, 1, 0.0001, 0).text == "256 B 100 us 0.00 GB/s"


def test_json_holds_findings_and_figures():
    report = Report(pairs=[Pair("p", "d", PairVerdict(0.001, (Run(256, 1, 0.5, 0),))), Pair("p", "e", None)])
    report.good("p -> d", "fine")
    assert json.loads(report.json()) == {
        "well": True,
        "findings": [{"level": "ok", "subject": "p -> d", "sentence": "fine"}],
        "pairs": [
            {
                "prefill": "p",
                "decode": "d",
                "verdict": {
                    "handshake_s": 0.001,
                    "runs": [{"num_bytes": 256, "num_spans": 1, "seconds": 0.5, "wrong_bytes": 0}],
                },
            },
            {"prefill": "p", "decode": "e", "verdict": None},
        ],
    }
