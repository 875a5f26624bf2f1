"""What a client that asks for it is told of the way of its request, in headers of the answer.

x-tandem-mode, x-tandem-reason       push, pull or local, and why
x-tandem-prefill, x-tandem-decode    who has served it; local: decode alone
x-tandem-attempt                     the number of the attempt that answers
server-timing                        ms (W3C Server Timing): queue, the line for admission; prefill, its leg; seats
                                     and kv, decode's waits as its shim tells them; first, from the request to
                                     decode's answer
"""

from __future__ import annotations

from router.driver.facts import Facts
from router.legs.answer import read_timing
from router.legs.connection import Headers


def told_headers(facts: Facts, engine_headers: Headers, answered_s: float) -> Headers:
    """The headers for an answer with these `engine_headers`, `answered_s` seconds after the request had been read."""
    placement = facts.placement
    if placement is None:
        return []
    seats_s, kv_s = read_timing(engine_headers)
    prefill_s = max(0.0, facts.prefilled_s - facts.sent_s) if facts.prefilled_s else 0.0
    phases = {"queue": facts.queued_s, "prefill": prefill_s, "seats": seats_s, "kv": kv_s, "first": answered_s}
    timing = ", ".join(f"{name};dur={1000 * took_s:.1f}" for name, took_s in phases.items() if took_s)
    prefill = placement.prefill.instance.instance_id if placement.prefill is not None else ""
    told = {
        "x-tandem-mode": placement.mode,
        "x-tandem-reason": placement.reason,
        "x-tandem-prefill": prefill,
        "x-tandem-decode": placement.decode.instance.instance_id if placement.decode is not None else "",
        "x-tandem-attempt": str(facts.attempts),
        "server-timing": timing,
    }
    return [(name.encode(), _printable(value)) for name, value in told.items() if value]


def _printable(text: str) -> bytes:
    """As a header may hold it: names come from whoever registers an instance."""
    return "".join(char if " " <= char <= "~" else "?" for char in text).encode()
