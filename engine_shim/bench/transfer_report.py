"""Table and JSON of `tandem bench transfer`."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from engine_shim.bench.transfer_figures import Figures, quantile

COLUMNS = (
    f"{'':13} {'layouts':15} {'runs':>5} {'blocks':>6} {'KiB':>5} {'MiB':>8} {'spans':>6} "
    f"{'plan ms':>8} {'post ms':>8} {'landed ms: p50':>14} {'p95':>8} {'max':>8} {'GB/s':>7}"
)


def print_table(figures: list[Figures], devices: tuple[str, str], rounds: int) -> None:
    """Everything, one line a case."""
    print(
        f"{devices[0]} -> {devices[1]}, {rounds} rounds; medians unless named otherwise; every case's bytes were right"
    )
    print(COLUMNS)
    for row in figures:
        print(_line(row))


def _line(row: Figures) -> str:
    case = row.case
    what = f"{'':15} {'':>5} {'':>6} {'':>5}"
    if case is not None:
        layouts = f"{case.source}:{case.target}"
        what = f"{layouts:15} {case.run_blocks or 'all':>5} {case.num_blocks:>6} {case.block_bytes // 1024:>5}"
    return (
        f"{row.name:13} {what} {row.num_bytes / 2**20:>8.2f} {row.num_spans:>6} "
        f"{_ms(row.plan_s, 0.5):>8} {_ms(row.post_s, 0.5):>8} {_ms(row.landed_s, 0.5):>14} "
        f"{_ms(row.landed_s, 0.95):>8} {_ms(row.landed_s, 1.0):>8} {row.gb_per_s:>7.2f}"
    )


def _ms(values: list[float], share: float) -> str:
    return f"{quantile(values, share) * 1000:.3f}" if values else "-"


def report(figures: list[Figures], options: dict[str, object], where: dict[str, object]) -> dict[str, object]:
    """All that was measured, seconds and bytes."""
    return {"options": options, "machine": where, "cases": [_entry(row) for row in figures]}


def _entry(row: Figures) -> dict[str, object]:
    case = row.case
    facts: dict[str, object] = {}
    if case is not None:
        facts = {
            "op": case.op.value,
            "path": case.path,
            "source": str(case.source),
            "target": str(case.target),
            "num_blocks": case.num_blocks,
            "block_bytes": case.block_bytes,
            "run_blocks": case.run_blocks or None,
        }
    times = {"plan_s": row.plan_s, "post_s": row.post_s, "done_s": row.done_s, "landed_s": row.landed_s}
    return {
        "name": row.name,
        "num_bytes": row.num_bytes,
        "num_spans": row.num_spans,
        **facts,
        "gb_per_s": round(row.gb_per_s, 3),
        **{name: _spread(values) for name, values in times.items() if values},
    }


def _spread(values: list[float]) -> dict[str, object]:
    shares = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
    return {
        **{name: round(quantile(values, share), 7) for name, share in shares.items()},
        "all": [round(value, 7) for value in values],
    }


def machine(devices: tuple[str, str]) -> dict[str, object]:
    """What it was measured on."""
    facts: dict[str, object] = {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nixl": _version("nixl_cu12") or _version("nixl_cu13"),
        "torch": _version("torch"),
        "devices": list(devices),
    }
    if any(device.startswith("cuda") for device in devices):
        import torch  # noqa: PLC0415  there is a GPU, so torch is here

        facts["gpus"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return facts


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
