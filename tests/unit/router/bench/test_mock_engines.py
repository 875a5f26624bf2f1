import pytest

from router.bench.mock_behaviour import Fault
from router.bench.mock_engines import _behaviour, _parser


def test_each_engine_is_told_its_own_delays_and_faults():
    given = _parser().parse_args(
        ["--prefill-delay-s", "0.5", "--decode-fault", "cut", "--fault-after", "3", "--fault-times", "1"]
    )
    prefill, decode = _behaviour(given, "prefill"), _behaviour(given, "decode")
    assert (prefill.delay_s, prefill.fault) == (0.5, Fault.NONE)
    assert (decode.delay_s, decode.fault, decode.fault_after, decode.times) == (0.0, Fault.CUT, 3, 1)


def test_every_fault_is_explained(capsys):
    with pytest.raises(SystemExit):
        _parser().parse_args(["--help"])
    shown = capsys.readouterr().out
    assert all(f"  {fault} " in shown for fault in Fault if fault is not Fault.NONE)
