"""One case for each alert: series under which it is quiet at first and fires later. One value a minute."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """Series in promtool's notation; `0+6x30` is 31 values that grow by 6, `1x5` is 6 times 1."""

    alert: str
    series: dict[str, str]
    quiet_at: str
    fires_at: str
    labels: dict[str, str]
    """Of the firing alert, severity left out."""
    summary: str
    severity: str = field(default="warn")


def _bucket(metric: str, le: str) -> str:
    return f'tandem_{metric}_seconds_bucket{{le="{le}"}}'


SERVED = 'tandem_requests_total{outcome="served", code=""}'
PAIR = 'tandem_shim_copy_{what}_total{{instance_id="{prefill}", op="WRITE", peer="d"}}'
P0, D0 = {"instance_id": "p-0", "role": "prefill"}, {"instance_id": "d-0", "role": "decode"}
OF_P0, OF_D0 = 'instance_id="p-0", role="prefill"', 'instance_id="d-0", role="decode"'


def _speeds(**per_minute: int) -> dict[str, str]:
    """Pairs that copy so many bytes a minute, in six seconds each."""
    rows = {}
    for prefill, num_bytes in per_minute.items():
        rows[PAIR.format(what="bytes", prefill=prefill)] = f"0+{num_bytes}x40"
        rows[PAIR.format(what="seconds", prefill=prefill)] = "0+6x40"
    return rows


CASES = (
    Case(
        "TandemRequestsFail",
        {SERVED: "0+54x40", 'tandem_requests_total{outcome="failed", code="leg_broken"}': "0x5 0+6x34"},
        quiet_at="5m",
        fires_at="20m",
        labels={},
        summary="10% of requests fail",
        severity="page",
    ),
    Case(
        "TandemFirstTokenLate",
        {
            _bucket("ttft", "1.0"): "0+60x10 660+0x30",
            _bucket("ttft", "4.0"): "0+60x40",
            _bucket("ttft", "+Inf"): "0+60x40",
        },
        quiet_at="10m",
        fires_at="30m",
        labels={},
        summary="p90 of the time to the first token is 3.7s",
        severity="page",
    ),
    Case(
        "TandemTokensSlow",
        {
            _bucket("tpot", "0.05"): "0+60x10 660+0x30",
            _bucket("tpot", "0.25"): "0+60x40",
            _bucket("tpot", "+Inf"): "0+60x40",
        },
        quiet_at="10m",
        fires_at="30m",
        labels={},
        summary="p90 of the time per output token is 230ms",
        severity="page",
    ),
    Case(
        "TandemOverloaded",
        {'tandem_requests_total{outcome="failed", code="overloaded"}': "0x10 0+12x30", SERVED: "0+60000x40"},
        quiet_at="10m",
        fires_at="25m",
        labels={},
        summary="0.2 requests per second are turned away because budgets are full",
        severity="page",
    ),
    Case(
        "TandemNoRouter",
        {'up{job="tandem-router", instance="r:1"}': "1x10 0x20"},
        quiet_at="10m",
        fires_at="14m",
        labels={},
        summary="No router answers its scrapes",
        severity="page",
    ),
    Case(
        "TandemRouterDown",
        {'up{job="tandem-router", instance="r:1"}': "1x10 0x20", 'up{job="tandem-router", instance="r:2"}': "1x30"},
        quiet_at="12m",
        fires_at="17m",
        labels={"job": "tandem-router", "instance": "r:1"},
        summary="Router r:1 does not answer its scrapes",
    ),
    Case(
        "TandemEngineDown",
        {'up{job="tandem-shim", instance="e:1"}': "1x10 0x20", 'up{job="tandem-shim", instance="e:2"}': "1x30"},
        quiet_at="12m",
        fires_at="17m",
        labels={"job": "tandem-shim", "instance": "e:1"},
        summary="Engine e:1 does not answer its scrapes",
    ),
    Case(
        "TandemEngineNotReady",
        {f"tandem_shim_ready{{{OF_P0}}}": "1x5 0x30", f"tandem_shim_ready{{{OF_D0}}}": "1x40"},
        quiet_at="15m",
        fires_at="25m",
        labels=P0,
        summary="p-0 runs, and takes no requests",
    ),
    Case(
        "TandemPoolEmpty",
        {
            'tandem_instances{role="prefill", draining="false", instance="r:1"}': "1x5 0x20",
            'tandem_instances{role="prefill", draining="true", instance="r:1"}': "0x5 1x20",
            'tandem_instances{role="decode", draining="false", instance="r:1"}': "2x25",
            'tandem_instances{role="both", draining="false", instance="r:1"}': "0x25",
        },
        quiet_at="5m",
        fires_at="8m",
        labels={"instance": "r:1"},
        summary="Router r:1 knows nobody who could do a prefill, or nobody who could decode",
        severity="page",
    ),
    Case(
        "TandemInstancesShut",
        {
            'tandem_instance_shut{instance_id="p-0", state="open"}': "_x5 1x20",
            'tandem_instance_shut{instance_id="p-1", state="busy"}': "1x25",
        },
        quiet_at="8m",
        fires_at="15m",
        labels={"instance_id": "p-0", "state": "open"},
        summary="Routers do not trust p-0: open",
    ),
    Case(
        "TandemRetriesDenied",
        {'tandem_retries_denied_total{why="budget"}': "0x10 0+2x20"},
        quiet_at="12m",
        fires_at="22m",
        labels={},
        summary="The budget of retries is spent: 20 denied within ten minutes",
    ),
    Case(
        "TandemPushComesLate",
        {
            'tandem_rendezvous_total{first="registered"}': "0+60x20 1260+15x30",
            'tandem_rendezvous_total{first="prefilled"}': "0x20 0+45x30",
        },
        quiet_at="20m",
        fires_at="50m",
        labels={},
        summary="Decode registers in time for 25% of pushes only",
    ),
    Case(
        "TandemPairSlow",
        _speeds(p0=6_000_000, p1=6_000_000, p2=600_000),
        quiet_at="10m",
        fires_at="30m",
        labels={"instance_id": "p2", "op": "WRITE", "peer": "d"},
        summary="p2 and d copy at 100kB/s, far below other pairs",
    ),
    Case(
        "TandemCopiesFail",
        {'tandem_shim_copies_total{instance_id="p-0", peer="d-0", op="WRITE", result="failed"}': "0x10 0+1x20"},
        quiet_at="11m",
        fires_at="22m",
        labels={"instance_id": "p-0", "peer": "d-0"},
        summary="10 copies between p-0 and d-0 failed within ten minutes",
    ),
    Case(
        "TandemPeerLost",
        {
            f'tandem_shim_peers{{fate="lost", {OF_P0}}}': "0x5 1x10",
            f'tandem_shim_peers{{fate="dead", {OF_P0}}}': "1x15",
        },
        quiet_at="6m",
        fires_at="10m",
        labels={"fate": "lost", **P0},
        summary="p-0 cannot reach 1 of its peers",
    ),
    Case(
        "TandemBlocksOrphaned",
        {f"tandem_shim_orphaned_blocks{{{OF_D0}}}": "0x5 12x15"},
        quiet_at="9m",
        fires_at="12m",
        labels=D0,
        summary="12 blocks of d-0 wait for a peer that cannot be reached",
        severity="page",
    ),
    Case(
        "TandemBlocksQuarantined",
        {f"tandem_shim_quarantined_blocks{{{OF_D0}}}": "0x5 3x40", f"tandem_shim_orphaned_blocks{{{OF_D0}}}": "0x50"},
        quiet_at="20m",
        fires_at="30m",
        labels=D0,
        summary="d-0 has had blocks in quarantine for more than a quarter of an hour",
    ),
    Case(
        "TandemBlocksHeld",
        {
            f"tandem_shim_held_blocks{{{OF_D0}}}": "7x40",
            f"tandem_shim_open_tickets{{{OF_D0}}}": "1x5 0x40",
            f"tandem_shim_running_seqs{{{OF_D0}}}": "1x5 0x40",
        },
        quiet_at="15m",
        fires_at="30m",
        labels=D0,
        summary="d-0 holds 7 blocks although nothing has run for a quarter of an hour",
    ),
    Case(
        "TandemBlocksStranded",
        {'tandem_mends_total{result="lost"}': "0x5 1x10", 'tandem_mends_total{result="freed"}': "0+5x15"},
        quiet_at="5m",
        fires_at="8m",
        labels={},
        summary="A plain vLLM decode engine keeps blocks that nobody will write",
    ),
    Case(
        "TandemNoticesForged",
        {
            'tandem_shim_facts_total{fact="notice_forged", instance_id="p-0"}': "0x5 1x10",
            'tandem_shim_facts_total{fact="notice_late", instance_id="p-0"}': "0+9x15",
        },
        quiet_at="5m",
        fires_at="8m",
        labels={"fact": "notice_forged", "instance_id": "p-0"},
        summary="p-0 is sent what no peer of this release says: notice_forged",
    ),
    Case(
        "TandemCacheFull",
        {f"tandem_shim_free_blocks{{{OF_D0}}}": "50x5 2x20", f"tandem_shim_total_blocks{{{OF_D0}}}": "100x25"},
        quiet_at="12m",
        fires_at="20m",
        labels=D0,
        summary="98% of the KV cache of d-0 is in use",
    ),
    Case(
        "TandemPromptsQueue",
        {
            f"tandem_shim_queued_prompt_tokens{{{OF_P0}}}": "20000x10 60000x20",
            'tandem_prompt_tokens_total{model="m"}': "0+180000x30",
        },
        quiet_at="10m",
        fires_at="20m",
        labels={},
        summary="Prefill engines have 20s of prompts before them",
    ),
    Case(
        "TandemFallsBackToLocal",
        {
            'tandem_local_fallbacks_total{reason="no_prefill"}': "0x10 0+30x40",
            'tandem_placement_total{mode="push", reason="configured"}': "0+60x10 660+30x40",
            'tandem_placement_total{mode="local", reason="no_prefill"}': "0x10 0+30x40",
        },
        quiet_at="10m",
        fires_at="45m",
        labels={},
        summary="50% of requests run on one engine although they might have been split",
    ),
    Case(
        "TandemExpertRanksRestart",
        {f"tandem_shim_expert_restarts_total{{{OF_P0}}}": "0x10 1x10 4x30"},
        quiet_at="20m",
        fires_at="35m",
        labels={"instance_id": "p-0"},
        summary="The expert ranks of p-0 began anew 4 times within half an hour",
    ),
    Case(
        "TandemStoreAway",
        {'tandem_store_degraded{instance="r:1"}': "0x5 1x10"},
        quiet_at="7m",
        fires_at="9m",
        labels={"instance": "r:1"},
        summary="Router r:1 cannot reach the store",
        severity="page",
    ),
    Case(
        "TandemLedgerLoses",
        {
            'tandem_ledger_entries_total{result="dropped"}': "0x10 0+10x20",
            'tandem_ledger_entries_total{result="failed_flushes"}': "0+1x30",
        },
        quiet_at="10m",
        fires_at="22m",
        labels={"result": "dropped"},
        summary="100 entries of the ledger were dropped within ten minutes",
    ),
    Case(
        "TandemTicketsOrphaned",
        {'tandem_orphaned_tickets{instance="r:1"}': "0x5 2x10"},
        quiet_at="9m",
        fires_at="12m",
        labels={"instance": "r:1"},
        summary="2 attempts of a router that is gone cannot be ended",
    ),
    Case(
        "TandemSettingsBad",
        {'tandem_settings_bad{instance="r:1"}': "0x5 1x10", 'tandem_fleet_lists_bad{instance="r:2"}': "0x15"},
        quiet_at="9m",
        fires_at="12m",
        labels={"instance": "r:1"},
        summary="Router r:1 runs with old settings or an old list of engines",
    ),
)
