from dataclasses import replace

from engine_shim.engine.port import EngineLoad, ExpertRankLoad
from engine_shim.serve.expert_metrics import expert_metrics

IDLE = EngineLoad(0, 0, 0, 0, 8, 8, 0, 0, 0, 0, 0)


def test_an_engine_without_ranks_says_nothing() -> None:
    assert list(expert_metrics(IDLE)) == []


def test_every_rank_tells_its_time_and_its_tokens() -> None:
    ranks = (ExpertRankLoad(4, 0.5, 0.25, 2.0, 1.0, 70), ExpertRankLoad(4, 0.5, 0.25, 2.0, 1.5, 30))
    load = replace(IDLE, expert_ranks=ranks, expert_restarts=2)
    told = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in expert_metrics(load)
        for sample in metric.samples
    }
    assert told["tandem_shim_expert_dispatch_seconds_sum", "0"] == 0.5
    assert told["tandem_shim_expert_dispatch_seconds_count", "1"] == 4
    assert told["tandem_shim_expert_wait_seconds_sum", "1", "combine"] == 1.5
    assert told["tandem_shim_expert_tokens_total", "0"] == 70
    assert told[("tandem_shim_expert_restarts_total",)] == 2
