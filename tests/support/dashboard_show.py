"""Every panel's queries answered by a real Prometheus, over a set-up under load.

`python -m tests.support.dashboard_show` writes `panels.json`, which `dashboard_draw.py` draws: a picture for each row
of the dashboard. That is a preview by us, not Grafana's own drawing. Status 1 when a panel has no numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx

from deploy.dashboards.__main__ import FILES
from tests.support.dashboards import filled_in
from tests.support.prometheus import Prometheus, numbers, prometheus
from tests.support.rules import RULE_FILES
from tests.support.up import Up, tandem_up

CLIENTS = 4
MODES = ("push", "pull", "local")
PATIENCE_S = 0.3
"""A client in ten leaves after so long."""


async def _client(url: str, seed: int, ends_at: float) -> None:
    """Requests one after the other, of varied lengths; some are wrong, and some are left."""
    chance = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        while time.monotonic() < ends_at:
            prompt = [chance.randrange(3, 90) for _ in range(chance.choice((20, 80, 300)))]
            model = "nobody" if chance.random() < 0.05 else "tiny"
            body = {
                "model": model,
                "prompt": prompt,
                "max_tokens": chance.randrange(4, 60),
                "stream": chance.random() < 0.8,
            }
            leaves = chance.random() < 0.1
            try:
                await client.post("/v1/completions", json=body, timeout=PATIENCE_S if leaves else 30)
            except httpx.TransportError:
                continue


async def _serve(up: Up, lasts_s: float) -> None:
    """Load in each mode for a third of the time; one prefill engine stands still for a while in the first."""
    ends_at = time.monotonic() + lasts_s
    clients = [asyncio.create_task(_client(up.url, seed, ends_at)) for seed in range(CLIENTS)]
    engine = next(one for one in up.process.children() if "prefill-0" in one.cmdline())
    async with httpx.AsyncClient(base_url=up.url) as admin:
        for mode in MODES:
            await admin.post("/admin/mode", json={"mode": mode})
            await asyncio.sleep(lasts_s / len(MODES) / 2)
            if mode == "push":
                engine.send_signal(signal.SIGSTOP)
                await asyncio.sleep(3)
                engine.send_signal(signal.SIGCONT)
            await asyncio.sleep(max(0.0, lasts_s / len(MODES) / 2 - 3 * (mode == "push")))
    await asyncio.gather(*clients)


def _answered(running: Prometheus, panel: dict[str, Any], since_at: float) -> list[dict[str, Any]]:
    """The series of all queries of a panel, each with its legend."""
    lines = []
    for target in panel["targets"]:
        for series in running.history(filled_in(target["expr"]), since_at):
            legend = target["legendFormat"]
            for label, value in series["metric"].items():
                legend = legend.replace(f"{{{{{label}}}}}", value)
            lines.append({"legend": legend, "values": series["values"]})
    return lines


def _set_up(folder: Path) -> AbstractContextManager[Up]:
    """Engines with expert ranks, since theirs are the most panels."""
    model = ("--model", "tiny-moe", "--model-name", "tiny", "--ep", "2", "--kv-bytes", "4000000", "--threads", "1")
    return tandem_up(folder, *model, "--prefill", "2", "--decode", "1")


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=90.0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, _set_up(Path(folder)) as up:
        jobs = {"tandem-router": [up.url], "tandem-shim": list(up.engines().values())}
        with prometheus(Path(folder), jobs, RULE_FILES) as running:
            began_at = time.time()
            asyncio.run(_serve(up, options.seconds))
            panels = [
                one | {"lines": _answered(running, one, began_at)} if "targets" in one else one
                for one in FILES["tandem.json"]["panels"]
            ]
    (options.folder / "panels.json").write_text(json.dumps(panels), encoding="utf-8")
    silent = [one["title"] for one in panels if "lines" in one and not numbers(one["lines"])]
    for title in silent:
        print(f"no numbers: {title}", file=sys.stderr)
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
