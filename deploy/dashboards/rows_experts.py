"""Row about engines whose experts are shared by ranks; empty where none is."""

from __future__ import annotations

from deploy.dashboards.panels import Row, Unit, lines, split
from deploy.dashboards.promql import mean, rate

RANK = "instance_id, rank"
RANK_LEGEND = "{{instance_id}} rank {{rank}}"
_rows = rate("tandem_shim_expert_tokens_total", by=RANK)

EXPERTS = Row(
    "Experts",
    (
        lines(
            "One expert layer",
            Unit.SECONDS,
            "Mean of a rank: packing and posting rows (dispatch) and answers (combine), and waiting for the others'.",
            dispatch=mean("tandem_shim_expert_dispatch_seconds"),
            combine=mean("tandem_shim_expert_combine_seconds"),
            wait_for_rows=mean("tandem_shim_expert_wait_seconds", 'phase="dispatch"'),
            wait_for_answers=mean("tandem_shim_expert_wait_seconds", 'phase="combine"'),
        ),
        split(
            "Wait of each rank",
            Unit.SECONDS,
            "Mean of both waits of a layer. The rank that waits least is the one that the others wait for.",
            mean("tandem_shim_expert_wait_seconds", by=RANK),
            RANK_LEGEND,
        ),
        split(
            "Rows for each rank's experts",
            Unit.PER_S,
            "Rows per second that came to the experts of each rank.",
            _rows,
            RANK_LEGEND,
            stacked=True,
        ),
        split(
            "Skew between ranks",
            Unit.COUNT,
            "Rows of the busiest rank, divided by the mean of all: 1 is even; N ranks are at most N.",
            f"max by (instance_id) ({_rows}) / avg by (instance_id) ({_rows})",
            "{{instance_id}}",
        ),
        split(
            "Restarts of all ranks",
            Unit.PER_S,
            "All ranks of an engine begin anew when one has ended; its requests have failed with `rank_gone`.",
            rate("tandem_shim_expert_restarts_total", by="instance_id"),
            "{{instance_id}}",
        ),
    ),
)
