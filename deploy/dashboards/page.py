"""The dashboard of Tandem: one page, from what clients get down to what goes wrong."""

from __future__ import annotations

from deploy.dashboards.grafana import choice_variable, dashboard, label_variable, source_variable
from deploy.dashboards.rows_clients import MODES, NOW, SERVICE
from deploy.dashboards.rows_engines import POOLS, RELIABILITY, RENDEZVOUS
from deploy.dashboards.rows_experts import EXPERTS
from router.observe.histogram import TPOT_S, TTFT_S

ROWS = (NOW, SERVICE, MODES, RENDEZVOUS, POOLS, EXPERTS, RELIABILITY)

VARIABLES = (
    source_variable(),
    label_variable("namespace", "tandem_requests_in_flight"),
    label_variable("model", "tandem_requests_total"),
    # Histograms know how many were within a bound of a bucket, so an SLO is one of these.
    choice_variable("ttft_slo", "TTFT SLO, s", [str(bound) for bound in TTFT_S], "2.0"),
    choice_variable("tpot_slo", "TPOT SLO, s", [str(bound) for bound in TPOT_S], "0.05"),
)

TANDEM = dashboard("tandem", "Tandem", VARIABLES, ROWS)
