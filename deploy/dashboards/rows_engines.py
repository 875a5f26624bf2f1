"""Rows about routers and engines: the Rendezvous and its copies, the pools, and what goes wrong.

Panels of `tandem_shim_*` are about engines with our shim; plain vLLM servers have dashboards of their own.
"""

from __future__ import annotations

from deploy.dashboards.panels import Panel, Query, Row, Unit, lines, split
from deploy.dashboards.promql import largest, per, quantile, rate, select, total

ENGINE = "instance_id"
PAIR = "instance_id, op, peer"
PAIR_LEGEND = "{{instance_id}} {{op}} {{peer}}"
FIRST = "tandem_rendezvous_total"
REGISTERED = 'first="registered"'
_draining = largest("tandem_instances", 'draining="true"', by="role")

RENDEZVOUS = Row(
    "Rendezvous and transfer",
    (
        lines(
            "Decode registered before prefill was done",
            Unit.SHARE,
            "What push is for: the copy begins the moment prefill ends. A low share: decode has no seats in time.",
            registered_first=f"{rate(FIRST, REGISTERED)} / {rate(FIRST)}",
        ),
        split(
            "Who waited how long, p90",
            Unit.SECONDS,
            "Decode that waits for prefill is as it should be; prefill that waits keeps KV cache for nothing.",
            quantile(0.9, "tandem_rendezvous_wait_seconds", by="waited"),
            "{{waited}} waited",
        ),
        lines(
            "Copy of a prompt's KV cache",
            Unit.SECONDS,
            "From the meeting to the observed end of the WRITE, as prefill sees it.",
            p50=quantile(0.5, "tandem_shim_transfer_seconds"),
            p99=quantile(0.99, "tandem_shim_transfer_seconds"),
        ),
        split(
            "Speed of a copy, per pair",
            Unit.BYTES_PER_S,
            "Bytes divided by the time that copies took. One pair far below the others: look at its link and provider.",
            per("tandem_shim_copy_bytes_total", "tandem_shim_copy_seconds_total", by=PAIR),
            PAIR_LEGEND,
        ),
        split(
            "Moved, per pair",
            Unit.BYTES_PER_S,
            "Bytes of finished copies per second.",
            rate("tandem_shim_copy_bytes_total", by=PAIR),
            PAIR_LEGEND,
            stacked=True,
        ),
        split(
            "Bytes in one piece",
            Unit.BYTES,
            "How contiguous the blocks of both caches are: small pieces cost time, since each is a descriptor.",
            per("tandem_shim_copy_bytes_total", "tandem_shim_copy_spans_total", by=PAIR),
            PAIR_LEGEND,
        ),
    ),
)

POOLS = Row(
    "Pools",
    (
        split(
            "Prompt tokens to compute",
            Unit.COUNT,
            "In each engine; less what the prefix cache has, once a prompt is let in. The prefill pool scales on it.",
            total("tandem_shim_queued_prompt_tokens", by="role, instance_id"),
            "{{instance_id}}",
            stacked=True,
        ),
        split(
            "KV cache in use",
            Unit.SHARE,
            "Blocks that a new sequence could not take; cached prefixes are free. The decode pool scales on it.",
            f"1 - {total('tandem_shim_free_blocks', by=ENGINE)} / {total('tandem_shim_total_blocks', by=ENGINE)}",
            "{{instance_id}}",
        ),
        lines(
            "Waiting",
            Unit.COUNT,
            "Requests that wait at the router's door, and sequences that wait inside engines.",
            at_the_door=total("tandem_queue_requests"),
            in_prefill_engines=total("tandem_shim_waiting_seqs", 'role="prefill"'),
            in_decode_engines=total("tandem_shim_waiting_seqs", 'role=~"decode|both"'),
        ),
        split(
            "Legs in flight",
            Unit.COUNT,
            "Calls of routers to engines, by role of the engine.",
            total("tandem_legs_in_flight", by="role"),
            "{{role}}",
            stacked=True,
        ),
        split(
            "Running sequences",
            Unit.COUNT,
            "In the batch of each engine.",
            total("tandem_shim_running_seqs", by="role, instance_id"),
            "{{instance_id}}",
            stacked=True,
        ),
        split(
            "Instances, by breaker",
            Unit.COUNT,
            "What routers hold against them; `closed` is well, `open` gets nothing for now.",
            largest("tandem_instance_health", by="state"),
            "{{state}}",
            stacked=True,
        ),
        Panel(
            "Instances, by role",
            Unit.COUNT,
            "In the fleet that routers see; those that drain get nothing new.",
            (
                Query(largest("tandem_instances", 'draining="false"', by="role"), "{{role}}"),
                Query(f"sum({_draining})", "draining"),
            ),
            stacked=True,
        ),
        split(
            "Prefix cache",
            Unit.SHARE,
            "Share of prompt tokens that an engine had already.",
            per("tandem_shim_prefix_hit_tokens_total", "tandem_shim_prefix_query_tokens_total", by="instance_id"),
            "{{instance_id}}",
        ),
        split(
            "Tokens",
            Unit.PER_S,
            "Generated per second by each engine.",
            rate("tandem_shim_generation_tokens_total", by="instance_id"),
            "{{instance_id}}",
            stacked=True,
        ),
    ),
)

RELIABILITY = Row(
    "Reliability",
    (
        lines(
            "Blocks that nobody may take",
            Unit.COUNT,
            "Held for a copy; of these quarantined, since somebody might still write; of these orphaned, whose writer "
            "cannot be reached. The last two should be 0.",
            held=total("tandem_shim_held_blocks"),
            quarantined=total("tandem_shim_quarantined_blocks"),
            orphaned=total("tandem_shim_orphaned_blocks"),
        ),
        lines(
            "Open tickets",
            Unit.COUNT,
            "Attempts whose outcome is open, and those that a router ends for another one.",
            at_routers=total("tandem_open_tickets"),
            at_engines=total("tandem_shim_open_tickets"),
            orphaned=total("tandem_orphaned_tickets"),
        ),
        Panel(
            "Retries",
            Unit.PER_S,
            "Attempts after the first, by the error that led to them, and those that the budget did not allow.",
            (
                Query(rate("tandem_retries_total", by="reason"), "{{reason}}"),
                Query(rate("tandem_retries_denied_total"), "denied"),
            ),
        ),
        split(
            "Clients that left",
            Unit.PER_S,
            "By what they were waiting for.",
            rate("tandem_cancels_total", by="phase"),
            "{{phase}}",
            stacked=True,
        ),
        split(
            "Between engines",
            Unit.PER_S,
            "Notices refused, peers lost or died, prompts computed anew. `notice_late` is harmless.",
            rate("tandem_shim_facts_total", by="fact"),
            "{{fact}}",
        ),
        split(
            "Copies that failed",
            Unit.PER_S,
            "By pair.",
            rate("tandem_shim_copies_total", 'result="failed"', by=PAIR),
            PAIR_LEGEND,
        ),
        lines(
            "Breakers and hedges",
            Unit.PER_S,
            "Breakers that opened, and second attempts beside late first ones.",
            breakers_of_instances=rate("tandem_breaker_trips_total", 'of="instance"'),
            breakers_of_pairs=rate("tandem_breaker_trips_total", 'of="pair"'),
            hedges=rate("tandem_hedges_total", 'result="sent"'),
        ),
        lines(
            "Should be 0",
            Unit.COUNT,
            "Conditions that somebody has to end.",
            routers_without_store=total("tandem_store_degraded"),
            bad_settings=total("tandem_settings_bad"),
            bad_fleet_lists=total("tandem_fleet_lists_bad"),
            lost_peers=total("tandem_shim_peers", 'fate="lost"'),
            engines_not_ready=f"sum(1 - {select('tandem_shim_ready')})",
        ),
        lines(
            "Ledger",
            Unit.PER_S,
            "Entries written and lost; without the store serving goes on, Stories do not.",
            written=rate("tandem_ledger_entries_total", 'result="written"'),
            lost=rate("tandem_ledger_entries_total", 'result=~"dropped|rejected"'),
        ),
        lines(
            "Router's own time",
            Unit.SECONDS,
            "Request read to both legs sent, less its time in a queue.",
            p50=quantile(0.5, "tandem_router_overhead_seconds"),
            p99=quantile(0.99, "tandem_router_overhead_seconds"),
        ),
    ),
)
