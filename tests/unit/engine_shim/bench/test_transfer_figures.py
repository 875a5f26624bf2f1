import pytest

from engine_shim.bench.transfer_case import Case, Shape
from engine_shim.bench.transfer_figures import measure, quantile
from engine_shim.bench.transfer_memory import count_wrong_bytes, noise, poison
from engine_shim.core.transfer_plan import Span, TransferPlan
from engine_shim.fabric.port import CopyOp
from router.contract.errors import TransferFailed
from router.contract.kv import KVOrder


def test_a_quantile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [quantile(values, share) for share in (0.5, 0.95, 1.0)] == [50.0, 95.0, 100.0]
    assert quantile([3.0, 1.0], 0.5) == 1.0
    assert quantile([], 0.5) == 0.0


def test_missing_and_strange_bytes_are_both_counted() -> None:
    source, plan = noise(64, 1) | 1, TransferPlan((Span(8, 32, 16),))
    target = poison(64)
    target[32:48] = source[8:24]
    assert count_wrong_bytes(target, source, plan) == 0
    target[0] = 0
    target[40:42] = ~target[40:42]
    assert count_wrong_bytes(target, source, plan) == 3


class LyingAgent:
    """Says that a byte is wrong."""

    def ask(self, verb: str, *_: object) -> object:
        return 1 if verb == "wrong_bytes" else None


def test_no_time_is_told_of_bytes_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_shim.bench.transfer_figures._move", lambda *_: None)
    plain = Shape(KVOrder.BLOCK_FIRST)
    case = Case(CopyOp.WRITE, "direct", plain, plain, 1, 8192, 0)
    with pytest.raises(TransferFailed, match="1 bytes are wrong"):
        measure((LyingAgent(), LyingAgent()), case, 1)  # type: ignore[arg-type]
