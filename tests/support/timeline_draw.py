"""Draw who waited for whom: `timeline_draw.py BENCH.json OUT.png`, of `bench serve --compare --json`. Needs matplotlib.

A row for prefill and one for decode of each set-up's typical request, from the router's reading of it to the last byte.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

Bar = tuple[str, float, float, str]
"""(row, begin in ms, end in ms, what)"""
COLOURS = {
    "computes": "#4c78a8",
    "computes, pushes": "#72b7b2",
    "moves KV": "#e45756",
    "waits for KV": "#d8d8d8",
    "first token": "#f2cf5b",
    "decodes": "#54a24b",
}


def bars_of(name: str, story: list[dict[str, object]]) -> list[Bar]:
    """What prefill and decode did, and when; of a Story without a hand-over, what the engine did."""
    begin_s = float(str(story[0]["posted_s"]))
    at = {str(line["stage"]): (float(str(line["posted_s"])) - begin_s) * 1000 for line in reversed(story)}
    course = str(next(line["note"] for line in story if line["stage"] == "served"))
    first, end = (float(re.findall(rf"{word} ([0-9.]+) ms", course)[0]) for word in ("first byte", "end"))
    if "computed" not in at:
        return [(name, 0.0, first, "computes"), (name, first, end, "decodes")]
    p, d = f"{name}: prefill", f"{name}: decode"
    pushes = " push (" in f" {course}" and "Prefilled" in at
    early = min(at["Prefilled"], at["computed"]) if pushes else at["computed"]
    return [
        (p, 0.0, early, "computes"),
        (p, early, at["computed"], "computes, pushes"),
        (p, at["computed"], at["kv_ready"], "moves KV"),
        (d, 0.0, at["kv_ready"], "waits for KV"),
        (d, at["kv_ready"], first, "first token"),
        (d, first, end, "decodes"),
    ]


def draw(bars: list[Bar], out: Path) -> None:
    """`out` is a PNG of the bars."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    rows = list(dict.fromkeys(row for row, *_ in bars))
    figure, axes = plt.subplots(figsize=(11, 0.45 * len(rows) + 1.4))
    for row, begin, end, what in bars:
        axes.barh(rows.index(row), end - begin, left=begin, height=0.7, color=COLOURS[what])
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.set_xlabel("ms since the router had read the request")
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    axes.legend(handles, COLOURS, ncols=len(COLOURS), loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def main(bench: str, out: str) -> int:
    runs = json.loads(Path(bench).read_text())["runs"]
    told = {run["set_up"]: run["timeline"] for run in runs if run["timeline"]}
    draw([bar for name, story in told.items() for bar in bars_of(name, story)], Path(out))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
