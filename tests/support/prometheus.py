"""A real Prometheus as a child of the tests."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from router.cli.local_fleet import free_port

SCRAPE_S = 1
"""A busy machine needs some of it for an answer."""
WITHIN_S = 60.0


@dataclass
class Prometheus:
    """One that scrapes."""

    url: str

    def ask(self, path: str, **params: str | float) -> Any:
        """`data` of the answer to a GET. Raises AssertionError with Prometheus' own words when it refuses."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params, timeout=30).json()
        assert answer["status"] == "success", f"{answer.get('error')}: {params}"
        return answer["data"]

    def value(self, expr: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        return list(self.ask("query", query=expr)["result"])

    def history(self, expr: str, since_at: float, step_s: float = 1.0) -> list[dict[str, Any]]:
        """The series of a query since then (Unix seconds)."""
        return list(self.ask("query_range", query=expr, start=since_at, end=time.time(), step=step_s)["result"])

    def wait_for(self, expr: str) -> None:
        """The query has an answer that is a number and not 0."""
        ends_at = time.monotonic() + WITHIN_S
        while not any((value := float(one["value"][1])) and math.isfinite(value) for one in self.value(expr)):
            assert time.monotonic() < ends_at, f"nothing answers {expr} within {WITHIN_S:g} s"
            time.sleep(0.1)


def numbers(series: Sequence[Mapping[str, Any]]) -> list[float]:
    """All values of a range query that are numbers."""
    return [value for one in series for _, text in one["values"] if math.isfinite(value := float(text))]


@contextmanager
def prometheus(folder: Path, jobs: Mapping[str, Sequence[str]], rules: Sequence[Path] = ()) -> Iterator[Prometheus]:
    """It scrapes the URLs of each job until the end of the block."""
    port = free_port("127.0.0.1")
    scrape = f"{SCRAPE_S}s"
    config = {
        "global": {"scrape_interval": scrape, "scrape_timeout": scrape, "evaluation_interval": scrape},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [url.partition("//")[2] for url in urls]}]}
            for job, urls in jobs.items()
        ],
    }
    (folder / "prometheus.json").write_text(json.dumps(config), encoding="utf-8")
    words = [f"--config.file={folder}/prometheus.json", f"--storage.tsdb.path={folder}/tsdb"]
    words += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    with (folder / "prometheus.log").open("wb") as log:
        child = subprocess.Popen(["prometheus", *words], stdout=log, stderr=log)
    try:
        running = Prometheus(f"http://127.0.0.1:{port}")
        ends_at = time.monotonic() + WITHIN_S
        while not _is_ready(running.url):
            assert child.poll() is None, (folder / "prometheus.log").read_text()
            assert time.monotonic() < ends_at, "Prometheus does not become ready"
            time.sleep(0.05)
        yield running
    finally:
        child.kill()
        child.wait()


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False
