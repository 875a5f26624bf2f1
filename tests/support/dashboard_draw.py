"""Draw what `dashboard_show.py` has written, a PNG for each row: `dashboard_draw.py FOLDER`. Needs matplotlib."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

INCHES = 0.75
"""Of a column; rows are half as high."""
MANY = 14
"""Lines beyond so many are named no more."""
SCALES = (("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


def shown(value: float, unit: str) -> str:
    """A number as Grafana would write it, about."""
    if not math.isfinite(value):
        return "none"
    if unit == "percentunit":
        return f"{value:.1%}"
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if value < 1 else f"{value:.3g} s"
    letter, scale = next(((one, size) for one, size in SCALES if abs(value) >= size), ("", 1.0))
    return f"{value / scale:.3g} {letter}{ {'Bps': 'B/s', 'bytes': 'B', 'reqps': 'req/s', 'cps': '/s'}.get(unit, '') }"


def rows(panels: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """(title, panels) of each row."""
    found: list[tuple[str, list[dict[str, Any]]]] = []
    for one in panels:
        if one["type"] == "row":
            found.append((one["title"], []))
        else:
            found[-1][1].append(one)
    return found


def last(line: dict[str, Any]) -> float:
    """The newest value that is a number."""
    values = [float(text) for _, text in line["values"]]
    return next((value for value in reversed(values) if math.isfinite(value)), math.nan)


def draw_lines(axes: Any, panel: dict[str, Any], began_at: float, ended_at: float) -> None:
    """Lines over time, stacked where the panel says so."""
    defaults = panel["fieldConfig"]["defaults"]
    unit = defaults["unit"]
    stacked = defaults["custom"]["stacking"]["mode"] == "normal"
    times = sorted({at for line in panel["lines"] for at, _ in line["values"]})
    floor = dict.fromkeys(times, 0.0)
    for index, line in enumerate(panel["lines"]):
        values = {at: float(text) for at, text in line["values"]}
        color = f"C{index % 10}"
        label = f"{line['legend']}  {shown(last(line), unit)}" if index < MANY else None
        if stacked:
            top = {at: floor[at] + (values.get(at, 0.0) if math.isfinite(values.get(at, 0.0)) else 0.0) for at in times}
            axes.fill_between(
                [at - began_at for at in times], [*floor.values()], [*top.values()], alpha=0.5, color=color, label=label
            )
            floor = top
        else:
            axes.plot([at - began_at for at in values], [*values.values()], color=color, label=label, linewidth=1.3)
    axes.set_xlim(0, ended_at - began_at)
    axes.set_ylim(bottom=0, top=1.02 if unit == "percentunit" else None)
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, unit))
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=7)
    if panel["lines"]:
        axes.legend(fontsize=6.5, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncol=2, frameon=False)


def draw_bars(axes: Any, panel: dict[str, Any]) -> None:
    """The newest values as bars, the largest at the top."""
    unit = panel["fieldConfig"]["defaults"]["unit"]
    lines = sorted(panel["lines"], key=lambda line: -math.inf if math.isnan(last(line)) else last(line))
    axes.barh([f"{line['legend']}  {shown(last(line), unit)}" for line in lines], [last(line) for line in lines])
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_formatter(lambda value, _: shown(value, unit))


def draw_number(axes: Any, panel: dict[str, Any]) -> None:
    """The newest value."""
    text = shown(last(panel["lines"][0]), panel["fieldConfig"]["defaults"]["unit"]) if panel["lines"] else "none"
    axes.text(0.5, 0.45, text, fontsize=20, ha="center", va="center")
    axes.set_axis_off()


def draw_row(title: str, panels: list[dict[str, Any]], span: tuple[float, float], path: Path) -> None:
    """One picture."""
    top = min(one["gridPos"]["y"] for one in panels)
    height = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in panels) - top
    figure = plt.figure(figsize=(24 * INCHES, (height + 1) * INCHES / 1.6), dpi=80)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    for one in panels:
        place = one["gridPos"]
        low = 1 - (place["y"] - top + 1 + place["h"]) / (height + 1)
        is_lines = one["type"] == "timeseries"
        axes = figure.add_axes(
            (
                place["x"] / 24 + (0.09 if one["type"] == "bargauge" else 0.035),
                low + (0.34 if is_lines else 0.1) * place["h"] / (height + 1),
                place["w"] / 24 - (0.11 if one["type"] == "bargauge" else 0.05),
                (0.53 if is_lines else 0.75) * place["h"] / (height + 1),
            )
        )
        axes.set_title(one["title"], fontsize=10, loc="left")
        if is_lines:
            draw_lines(axes, one, *span)
        elif one["type"] == "bargauge":
            draw_bars(axes, one)
        else:
            draw_number(axes, one)
    figure.savefig(path)
    plt.close(figure)


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1])
    panels = json.loads((folder / "panels.json").read_text(encoding="utf-8"))
    times = [at for one in panels for line in one.get("lines", ()) for at, _ in line["values"]]
    for number, (title, some) in enumerate(rows(panels)):
        path = folder / f"{number}-{title.lower().replace(' ', '-')}.png"
        draw_row(title, some, (min(times), max(times)), path)
        print(path)


if __name__ == "__main__":
    main()
