"""The benchmark's own arithmetic and defaults."""

from __future__ import annotations

from engine_shim.bench.experts_figures import percentiles
from engine_shim.bench.experts_nvlink import parse


def test_percentiles_are_measured_values() -> None:
    assert percentiles([float(i) for i in range(100, 0, -1)]) == (51.0, 91.0, 100.0)
    assert percentiles([7.0]) == (7.0, 7.0, 7.0)


def test_the_defaults_are_the_field_s_reference_case() -> None:
    arguments = parse(["--ranks", "2"])
    assert (arguments.hidden, arguments.experts, arguments.top_k) == (7168, 256, 8)
    assert arguments.tokens == [1, 8, 32, 128, 512, 4096]
    assert arguments.routing == ["uniform"]
