"""Contract of dashboards and rules with what a running `tandem up` tells, and with a real Prometheus (case G10)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.support.dashboards import filled_in, queries
from tests.support.metric_tables import promised, scraped
from tests.support.prometheus import Prometheus, numbers, prometheus
from tests.support.promql import unknown
from tests.support.rules import RULE_FILES, expressions, recorded
from tests.support.up import Up

pytestmark = [pytest.mark.needs("model", "nixl", "redis", "promtool"), pytest.mark.timeout(240)]


ONLY_WHEN_AMISS = ("tandem_instance_shut", "tandem_local_fallbacks_total")
"""Without a sample while all is well; `real/router/test_observed.py` holds their row of the table to the truth."""
OF_RANKS = "tandem_shim_expert_"
"""Told with `--ep`: `test_experts.py` holds these panels to a scrape, `make dashboards-test` draws them."""
LAST_OF_A_ROUND = 'tandem_requests_total{code="model_not_found"}'


@dataclass
class Watched:
    """A set-up that has served a little of everything while a Prometheus scraped it."""

    up: Up
    prometheus: Prometheus
    since_at: float
    """Unix seconds."""


def serve_a_little(url: str) -> None:
    """A request or two in every mode, streamed and not, and one that is refused."""
    with httpx.Client(base_url=url, timeout=120) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        body = {"model": model, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        for mode, streams in (("local", (True,)), ("pull", (True,)), ("push", (True, False))):
            client.post("/admin/mode", json={"mode": mode}).raise_for_status()
            for stream in streams:
                asked = body | {"stream": stream, "prompt": f"{mode} {stream} " * 12}
                client.post("/v1/completions", json=asked).raise_for_status()
        client.post("/admin/mode", json={"mode": None}).raise_for_status()
        assert client.post("/v1/completions", json={"model": "nobody", "prompt": "a"}).status_code == 404


@pytest.fixture(scope="module")
def watched(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    jobs = {"tandem-router": [up.url], "tandem-shim": list(up.engines().values())}
    with prometheus(tmp_path_factory.mktemp("prometheus"), jobs, RULE_FILES) as running:
        running.wait_for('min(up{job=~"tandem-.*"})')
        began_at = time.time()
        # A rate needs two looks at a series, and these begin with the first request of their kind.
        serve_a_little(up.url)
        running.wait_for(LAST_OF_A_ROUND)
        serve_a_little(up.url)
        running.wait_for(f"{LAST_OF_A_ROUND} > 1")
        running.wait_for("tandem:ttft_seconds:p90")
        running.wait_for("tandem:copy_bytes_per_second:pair")
        yield Watched(up, running, began_at)


def list_urls(up: Up) -> list[str]:
    """Of router and engines."""
    return [up.url, *up.engines().values()]


def test_whatever_is_asked_for_is_told(watched: Watched) -> None:
    elsewhere = {name: labels for name, labels in promised().items() if name.startswith((*ONLY_WHEN_AMISS, OF_RANKS))}
    known = elsewhere | scraped(list_urls(watched.up)) | recorded() | {"up": frozenset()}
    asked = [*queries(), *expressions()]
    assert len(asked) > 100
    lost = {name: wrong for name, expr in asked if (wrong := unknown(expr, known))}
    assert lost == {}


def test_every_query_of_a_panel_is_answered_with_numbers(watched: Watched) -> None:
    silent = [
        name
        for name, expr in queries()
        if not name.startswith("$")
        and OF_RANKS not in expr
        and not numbers(watched.prometheus.history(filled_in(expr), watched.since_at))
    ]
    assert silent == []


def test_every_rule_has_been_evaluated_and_nothing_is_amiss(watched: Watched) -> None:
    rules = [rule for group in watched.prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {name for name, _ in expressions()}
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []
    assert [(rule["name"], rule["alerts"]) for rule in rules if rule.get("state") == "firing"] == []
    silent = [
        rule["name"] for rule in rules if rule["type"] == "recording" and not watched.prometheus.value(rule["name"])
    ]
    assert silent == []
