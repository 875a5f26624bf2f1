"""What one request showed, and what many together say.

Latencies run from the instant a request was due, so a client that sends late, for lack of processor time or by its
concurrency cap, cannot hide a wait. Definitions, with t(i) the arrival of the i-th event that shows output:

    TTFT = t(1) - due      E2E = end of the answer - due      ITL = t(i+1) - t(i), pooled over all requests
    TPOT = (t(last) - t(1)) / (output tokens - 1), one value a request, from the server's token count where it tells one
    goodput = requests per second that were answered whole and met every given objective
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

LATE_S = 0.005


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Instants are seconds after the start of the load."""

    index: int
    due_s: float
    sent_s: float
    ended_s: float
    output_at_s: tuple[float, ...]
    """When each event that showed output arrived; one instant for an answer that is not streamed."""
    prompt_tokens: int
    output_tokens: int
    status: int
    """HTTP status; 0 when there was none."""
    failure: str = ""
    """Empty for an answer that came whole, else the error's code."""

    @property
    def is_whole(self) -> bool:
        """True when the answer came to its proper end."""
        return not self.failure

    @property
    def ttft_s(self) -> float | None:
        """Seconds from due to the first output; None without output."""
        return self.output_at_s[0] - self.due_s if self.output_at_s else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds an output token after the first; None with fewer than two."""
        if len(self.output_at_s) < 2 or self.output_tokens < 2:
            return None
        return (self.output_at_s[-1] - self.output_at_s[0]) / (self.output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """Seconds from due to the end."""
        return self.ended_s - self.due_s


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and percentiles of a quantity, in milliseconds."""

    mean_ms: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    count: int


@dataclass(frozen=True, slots=True)
class Objectives:
    """Service level objectives; None for one that does not matter."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def met_by(self, record: Record) -> bool:
        """True when `record` came whole and within both; a quantity that it does not have counts as met."""
        pairs = ((record.ttft_s, self.ttft_ms), (record.tpot_s, self.tpot_ms))
        return record.is_whole and all(s is None or ms is None or s * 1e3 <= ms for s, ms in pairs)


@dataclass(frozen=True, slots=True)
class Summary:
    """One load. A Spread is None when nothing showed the quantity; latencies count whole answers only."""

    num_requests: int
    num_whole: int
    num_late: int
    """Sent more than LATE_S after they were due."""
    failures: dict[str, int]
    duration_s: float
    """From the first due request to the last end."""
    requests_per_s: float
    goodput_per_s: float
    prompt_tokens_mean: float
    output_tokens_mean: float
    output_tokens_per_s: float
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None


def failures_text(summary: Summary) -> str:
    """Return `failures: 2 x no_pair, ...`; empty when every answer was whole."""
    counts = ", ".join(f"{count} x {code}" for code, count in sorted(summary.failures.items()))
    return f"failures: {counts}" if counts else ""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the `share` quantile (0 to 1) of ascending, non-empty `ordered`, linear between neighbours."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def spread(values_s: Iterable[float | None]) -> Spread | None:
    """Return the Spread of those values that are there, None when none is."""
    ordered = sorted(value * 1e3 for value in values_s if value is not None)
    if not ordered:
        return None
    p50, p90, p99 = (percentile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1], len(ordered))


def summarize(records: Sequence[Record], objectives: Objectives) -> Summary:
    """Return what non-empty `records` of one load say together."""
    whole = [record for record in records if record.is_whole]
    duration_s = max(record.ended_s for record in records) - min(record.due_s for record in records)
    rate = 1 / duration_s if duration_s > 0 else 0.0
    gaps = (later - earlier for record in whole for earlier, later in pairwise(record.output_at_s))
    return Summary(
        num_requests=len(records),
        num_whole=len(whole),
        num_late=sum(record.sent_s - record.due_s > LATE_S for record in records),
        failures=dict(Counter(record.failure for record in records if record.failure)),
        duration_s=duration_s,
        requests_per_s=len(whole) * rate,
        goodput_per_s=sum(map(objectives.met_by, records)) * rate,
        prompt_tokens_mean=_mean([record.prompt_tokens for record in whole]),
        output_tokens_mean=_mean([record.output_tokens for record in whole]),
        output_tokens_per_s=sum(record.output_tokens for record in whole) * rate,
        ttft=spread(record.ttft_s for record in whole),
        tpot=spread(record.tpot_s for record in whole),
        itl=spread(gaps),
        e2e=spread(record.e2e_s for record in whole),
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
