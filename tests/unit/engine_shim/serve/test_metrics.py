from __future__ import annotations

import re
from dataclasses import replace
from importlib.resources import files

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_shim.engine.port import ExpertRankLoad, SamplingParams, TokensOut
from engine_shim.serve.intake import Endpoint, Intake, Prompt, Wishes
from engine_shim.serve.metrics import ShimMetrics
from engine_shim.serve.usage import Tally

ROW = re.compile(r"^\| `(tandem_shim_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)


@pytest.fixture
async def metrics(driver):
    return ShimMetrics(driver)


def samples(metrics):
    """By name and the values of all labels but those that every sample has."""
    read = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            assert (sample.labels.pop("instance_id"), sample.labels.pop("role")) == ("fake", "both")
            read[sample.name.removeprefix("tandem_shim_"), *sample.labels.values()] = sample.value
    return read


async def test_gauges_are_the_drivers_own(metrics, driver):
    driver.ready = False
    read = samples(metrics)
    expected = {
        "waiting_seqs": 2,
        "queued_prompt_tokens": 3,
        "free_blocks": 4,
        "held_blocks": 5,
        "quarantined_blocks": 6,
        "live_transfers": 7,
        "open_tickets": 8,
        "parked_seqs": 11,
        "total_blocks": 12,
        "preemptions_total": 13,
        "prefix_hit_tokens_total": 14,
        "prefix_query_tokens_total": 15,
        "ready": 0,
    }
    assert {name: read[name,] for name in expected} == expected
    assert read["facts_total", "peer_lost"] == 2
    assert read["orphaned_blocks",] == 16
    assert (read["rendezvous_total", "prefilled"], read["rendezvous_total", "registered"]) == (1, 0)
    assert read["rendezvous_wait_seconds_sum", "prefill"] == 0.5
    assert (read["transfer_seconds_sum",], read["kv_bytes_total",]) == (0.25, 17)
    assert (read["copies_total", "WRITE", "d-0", "done"], read["copies_total", "WRITE", "d-0", "failed"]) == (2, 1)
    carried = [read[f"copy_{what}_total", "WRITE", "d-0"] for what in ("bytes", "spans", "seconds")]
    assert carried == [8192, 4, 0.75]
    assert (read["pushes_total",], read["push_writes_total", "early"], read["push_writes_total", "last"]) == (1, 1, 1)
    assert (read["push_bytes_total", "early"], read["push_bytes_total", "last"]) == (64, 32)
    assert [read["peers", fate] for fate in ("met", "lost", "dead")] == [0, 2, 0]


async def test_requests_and_tokens_are_counted(metrics):
    tally = Tally(Intake(Endpoint.CHAT, "r", (Prompt((1, 2), None),), 1, SamplingParams(5), Wishes(), None, 1.0))
    metrics.count_tokens(tally)
    metrics.count_request(Endpoint.CHAT, "no_seats")
    read = samples(metrics)
    assert (read["prompt_tokens_total",], read["generation_tokens_total",]) == (0, 0)
    assert read["requests_total", "no_seats", "chat"] == 1
    tally.take(0, TokensOut("s", (7, 8, 9), ""))
    metrics.count_tokens(tally)
    read = samples(metrics)
    assert (read["prompt_tokens_total",], read["generation_tokens_total",]) == (2, 3)


def test_every_metric_of_the_table_is_told_and_no_other(metrics, driver, monkeypatch):
    ranks = (ExpertRankLoad(4, 0.5, 0.25, 2.0, 1.0, 70),)
    with_ranks = replace(driver.engine_load(), expert_ranks=ranks)
    monkeypatch.setattr(driver, "engine_load", lambda: with_ranks)
    table = files("engine_shim.serve").joinpath("README.md").read_text("utf-8")
    documented = {
        name: (kind, frozenset(labels.replace(" ", "").split(",")) - {""}) for name, kind, labels in ROW.findall(table)
    }
    metrics.count_request(Endpoint.CHAT, "ok")
    told = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        labels = frozenset().union(*(sample.labels for sample in family.samples)) - {"le", "instance_id", "role"}
        told[family.name + "_total" * (family.type == "counter")] = (family.type, labels)
    assert told == documented
