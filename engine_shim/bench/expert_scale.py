"""Dispatch and combine over many nodes, on paper: bytes, messages and constants in, microseconds out.

A half (dispatch or combine) of one decode step takes

    time = base + per_peer * remote ranks + bytes / line rate          [µs]

`bytes` are counted (below). `base` and `per_peer` (launches, host hand-over, network latency; posting and completing
one message) are fitted, for each wire and half, to what Perplexity published for its own kernels at EP16, 32 and 64
(T = 128, E = 256, K = 8, H = 7168, fp8 out, bf16 back, nodes of 8 GPUs, 400 Gbit/s per GPU), with their bytes: a row
per (token, expert). The fit's error is printed with it. No network of that kind was at hand, so nothing here is
measured by us but what stays inside a node.

Three ways to send, uniform routing, rows leaving one rank for other nodes, per token:

    exact       a row per expert             K (N - 8) / N
    per rank    a row per rank               (N - 8) (1 - C(E - e, K) / C(E, K)),  e = E / N
    per node    a row per node, then NVLink  (N / 8 - 1) (1 - C(E - 8 e, K) / C(E, K))
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from statistics import fmean, linear_regression

NODE = 8
"""GPUs of a node."""
NUM_EXPERTS, TOP_K, TOKENS = 256, 8, 128
DISPATCH_BYTES, COMBINE_BYTES = 7168 + 56 * 4 + 16, 2 * 7168
"""Of a row; on the way out with its scales and a header, as Perplexity sends it."""
LINE_BYTES_PER_US = 50_000.0
"""400 Gbit/s for each GPU."""
RANKS = (16, 32, 64)
FORWARD_US = {"dispatch": 14.5, "combine": 22.0}
"""Exchange of a step's de-duplicated rows inside a node: measured on four H200 over NVLink."""

PUBLISHED = {
    ("EFA", "dispatch"): (214.8, 229.1, 266.7),
    ("EFA", "combine"): (241.5, 335.0, 391.2),
    ("ConnectX-7", "dispatch"): (110.2, 153.9, 187.5),
    ("ConnectX-7", "combine"): (185.5, 266.3, 309.1),
}
"""Median µs at RANKS, from the table of perplexityai/pplx-garden's README."""
TO_BEAT = {"EFA": (459.0, 582.0, 692.0), "ConnectX-7": (295.7, 420.2, 496.6)}
"""Both halves: EFA as in Perplexity's article; ConnectX-7 the sum of the above."""
WAYS = ("exact", "per rank", "per node")


@dataclass(frozen=True, slots=True)
class Fit:
    """Constants of one wire and half."""

    base_us: float
    per_peer_us: float
    worst_error_us: float
    """The largest difference to a published figure."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """One line of the table."""

    wire: str
    num_ranks: int
    way: str
    bytes_us: float
    """Both halves' bytes at the line rate."""
    total_us: float
    published_us: float
    fixed_to_beat_us: float
    """Both halves must lose less than this to everything but bytes, to beat the published figure."""


def rows_to_other_nodes(num_ranks: int, way: str) -> float:
    """Expected rows per token that leave a rank for other nodes."""
    local = NUM_EXPERTS // num_ranks
    if way == "exact":
        return TOP_K * (num_ranks - NODE) / num_ranks
    if way == "per rank":
        return (num_ranks - NODE) * (1 - missed(local))
    return (num_ranks // NODE - 1) * (1 - missed(NODE * local))


def bytes_us(num_ranks: int, half: str, way: str) -> float:
    """What the bytes alone take."""
    row = DISPATCH_BYTES if half == "dispatch" else COMBINE_BYTES
    return TOKENS * rows_to_other_nodes(num_ranks, way) * row / LINE_BYTES_PER_US


def fit(wire: str, half: str) -> Fit:
    """The line through what was published, less the bytes; least squares over RANKS."""
    peers = [float(ranks - NODE) for ranks in RANKS]
    rest = [us - bytes_us(n, half, "exact") for us, n in zip(PUBLISHED[wire, half], RANKS, strict=True)]
    # A message does not cost less than nothing; where the figures say so, they say that it costs nothing.
    slope = max(linear_regression(peers, rest).slope, 0.0)
    base = fmean(rest) - slope * fmean(peers)
    errors = [abs(base + slope * a - b) for a, b in zip(peers, rest, strict=True)]
    return Fit(base, slope, max(errors))


def forecast(wire: str, num_ranks: int, way: str) -> Forecast:
    """What the model says of one wire, size and way."""
    moving, total = 0.0, 0.0
    for half in ("dispatch", "combine"):
        constants = fit(wire, half)
        peers = num_ranks - NODE if way != "per node" else num_ranks // NODE - 1
        moved = bytes_us(num_ranks, half, way)
        moving += moved
        total += constants.base_us + constants.per_peer_us * peers + moved
        total += FORWARD_US[half] if way == "per node" else 0.0
    published = TO_BEAT[wire][RANKS.index(num_ranks)]
    forwarding = sum(FORWARD_US.values()) if way == "per node" else 0.0
    return Forecast(wire, num_ranks, way, moving, total, published, published - moving - forwarding)


def report() -> str:
    """The whole model as text."""
    lines = [
        f"Model of one decode step over nodes of {NODE} GPUs at 400 Gbit/s each; T = {TOKENS}, top-{TOP_K} of "
        f"{NUM_EXPERTS}, hidden 7168, fp8 out, bf16 back.",
        "Nothing here is measured by us but forwarding inside a node (NVLink, four H200); constants are fitted to",
        "Perplexity's published medians, so 'exact' repeats them within the fit's error.",
        "",
    ]
    for wire, half in PUBLISHED:
        one = fit(wire, half)
        lines.append(
            f"  {wire:<11}{half:<9} base {one.base_us:6.1f} µs + {one.per_peer_us:5.2f} µs a remote rank "
            f"(worst error {one.worst_error_us:.1f} µs)"
        )
    lines += [
        "",
        f"  {'wire':<11}{'EP':>3}  {'rows':<9}{'bytes µs':>9}{'total µs':>10}{'published':>10}  beats it when",
    ]
    for wire in TO_BEAT:
        for ranks in RANKS:
            lines += [_line(forecast(wire, ranks, way)) for way in WAYS]
    lines += ["", *_verdict()]
    return "\n".join(lines)


def _line(one: Forecast) -> str:
    needed = f"all but bytes stays under {one.fixed_to_beat_us:.0f} µs"
    return (
        f"  {one.wire:<11}{one.num_ranks:>3}  {one.way:<9}{one.bytes_us:>9.1f}{one.total_us:>10.1f}"
        f"{one.published_us:>10.1f}  {needed}"
    )


def _verdict() -> list[str]:
    lines = []
    for ranks in RANKS:
        exact, node = forecast("EFA", ranks, "exact"), forecast("EFA", ranks, "per node")
        spent = node.total_us - node.bytes_us - sum(FORWARD_US.values())
        lines.append(
            f"EFA, EP{ranks}: sending each token once per node and summing inside the node before the way back saves "
            f"{exact.bytes_us - node.bytes_us:.0f} µs of bytes; {node.published_us:.0f} µs are beaten if everything "
            f"else costs less than {node.fixed_to_beat_us:.0f} µs (the fit says {spent:.0f})."
        )
    return [
        *lines,
        "Exact numerics cannot beat it by bytes: only by less base, which is launches, hand-over and latency.",
    ]


def missed(held: int) -> float:
    """The odds that none of a token's K distinct experts, drawn from all E, is among `held` ones."""
    return comb(NUM_EXPERTS - held, TOP_K) / comb(NUM_EXPERTS, TOP_K)
