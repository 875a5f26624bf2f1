import torch

from engine_shim.experts.port import Phase
from engine_shim.experts.stats import ExpertStats


def test_waiting_is_kept_apart_from_work_and_has_a_name() -> None:
    stats = ExpertStats(2)
    stats.sent(1.0)
    stats.waited(Phase.COUNTS, 2.0, 3)
    stats.waited(Phase.COMBINE, 4.0, 3)
    stats.waited(Phase.COMBINE, 8.0, None)
    stats.answered(16.0)
    assert (stats.num_steps, stats.dispatch_s, stats.combine_s) == (1, 1.0, 16.0)
    assert (stats.dispatch_wait_s, stats.combine_wait_s, stats.late_s) == (2.0, 12.0, {3: 6.0})


def test_rows_are_counted_by_expert() -> None:
    stats = ExpertStats(4)
    stats.received(torch.tensor([1, 1, 1, 1]))
    stats.received(torch.tensor([8, 0, 0, 0]))
    assert stats.expert_rows == [9, 1, 1, 1]
