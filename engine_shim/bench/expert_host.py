"""Dispatch and combine between the GPUs of one host over NVLink, on paper: two GPUs' times, with the bytes of more.

A half (dispatch or combine) of a step over N ranks takes between

    least   m + (bytes(N) - bytes(2)) / bare rate          or, where that is less, max(m, base + bytes(N) / bare rate):
                                                           all of our own work is hidden behind the link, or the reverse
    most    m + (bytes(N) - bytes(2)) / kernels' rate      nothing more is hidden than on two GPUs

where m is what the half took on two H200 and `bytes` leave a rank under uniform routing:

    exact       a row per expert    T K (N - 1) / N
    dedup       a row per rank      T (N - 1) (1 - C(E - e, K) / C(E, K)),  e = E / N

`base` and the bare rate are fitted to exchanges of bytes alone among four H200. The kernels' rate is that of exact rows
on two GPUs between 512 and 4096 tokens. Local work (quantising, spreading, summing K rows a token) does not grow with
N, so m has it all. Taken for granted, and measured by nobody here: that eight GPUs behind switches reach what four
reached, each to all others at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import linear_regression

from engine_shim.bench.expert_scale import NUM_EXPERTS, TOP_K, missed
from engine_shim.experts.shape import ExpertNumerics

HALVES = ("dispatch", "combine")
ROW_BYTES = {"dispatch": 7168 + 56 * 4, "combine": 2 * 7168}
"""fp8 with its scales, bf16."""
TWO_GPUS: dict[tuple[ExpertNumerics, int], tuple[float, float, float]] = {
    (ExpertNumerics.EXACT, 1): (15.7, 11.9, 16.8),
    (ExpertNumerics.EXACT, 8): (15.5, 12.2, 17.6),
    (ExpertNumerics.EXACT, 32): (17.1, 15.6, 22.7),
    (ExpertNumerics.EXACT, 128): (26.7, 32.9, 50.0),
    (ExpertNumerics.EXACT, 512): (70.1, 100.5, 158.9),
    (ExpertNumerics.EXACT, 4096): (441.0, 717.0, 1150.0),
    (ExpertNumerics.DEDUP, 1): (18.1, 12.3, 20.2),
    (ExpertNumerics.DEDUP, 8): (18.8, 12.3, 21.6),
    (ExpertNumerics.DEDUP, 32): (19.3, 12.9, 23.4),
    (ExpertNumerics.DEDUP, 128): (22.6, 20.9, 35.8),
    (ExpertNumerics.DEDUP, 512): (44.3, 44.5, 79.5),
    (ExpertNumerics.DEDUP, 4096): (234.0, 265.0, 500.0),
}
"""By tokens of a rank: µs of dispatch and of combine with events between them, which cost some, and of whole steps
(deploy/benchmarks/2026-11-30-h200-experts.md)."""
EXCHANGES = ((3_072, 7.0), (2_654_208, 14.5), (5_222_000, 22.0), (5_977_000, 23.6), (11_513_000, 39.0))
"""Bytes out of a rank to three peers, and µs until all flags have come: four H200, slowest rank, graph replay."""
RANKS = (4, 8)
TOKENS = (1, 8, 32, 128, 512, 4096)
GOALS: dict[tuple[int, ExpertNumerics, int], tuple[float, ...]] = {
    (4, ExpertNumerics.EXACT, 1): (30.0,),
    (4, ExpertNumerics.DEDUP, 1): (30.0,),
    (4, ExpertNumerics.EXACT, 128): (70.0,),
    (4, ExpertNumerics.DEDUP, 128): (50.0,),
    (4, ExpertNumerics.DEDUP, 4096): (300.0, 570.0),
    (8, ExpertNumerics.EXACT, 128): (90.0,),
    (8, ExpertNumerics.DEDUP, 128): (65.0,),
    (8, ExpertNumerics.DEDUP, 4096): (450.0, 850.0),
}
"""µs of a whole step, or of dispatch and of combine."""
PUBLISHED = (
    "EP8, T = 128: pplx-garden 50 + 64, DeepEP beside it 43 + 72, UCCL-EP 66 + 87 (H200); DeepEP 37 + 59 (H20)",
    "EP8, T = 4096: UCCL-EP 500 + 973, pplx-garden 1052 + 1397 (H200)",
    "EP4, T = 128: DeepEP 1.2.1 94 for both; T = 4096: 811 (bf16) + 593 (four H200, measured by us)",
)


@dataclass(frozen=True, slots=True)
class Span:
    """Between the model's two ends, µs."""

    least: float
    most: float

    def __add__(self, other: Span) -> Span:
        """One after the other."""
        return Span(self.least + other.least, self.most + other.most)


@dataclass(frozen=True, slots=True)
class Link:
    """What an exchange of bytes alone costs."""

    base_us: float
    bytes_per_us: float


def leaving_bytes(num_ranks: int, numerics: ExpertNumerics, half: str, tokens: int) -> float:
    """Expected bytes that one rank sends to others in a half."""
    if numerics is ExpertNumerics.EXACT:
        rows = TOP_K * (num_ranks - 1) / num_ranks
    else:
        rows = (num_ranks - 1) * (1 - missed(NUM_EXPERTS // num_ranks))
    return tokens * rows * ROW_BYTES[half]


def link() -> Link:
    """The line through EXCHANGES; least squares."""
    us_per_byte, base_us = linear_regression(*zip(*EXCHANGES, strict=True))
    return Link(base_us, 1 / us_per_byte)


def kernels_bytes_per_us(half: str) -> float:
    """At which exact rows left on two GPUs, launches and latency taken out."""
    few, many = ((tokens, two_gpus_us(ExpertNumerics.EXACT, tokens, half)) for tokens in (512, 4096))
    moved = leaving_bytes(2, ExpertNumerics.EXACT, half, many[0] - few[0])
    return moved / (many[1] - few[1])


def two_gpus_us(numerics: ExpertNumerics, tokens: int, half: str) -> float:
    """The half's part of a whole step."""
    *halves, both = TWO_GPUS[numerics, tokens]
    return halves[HALVES.index(half)] * both / sum(halves)


def forecast(num_ranks: int, numerics: ExpertNumerics, tokens: int, half: str) -> Span:
    """What the model says of one half."""
    measured, wire = two_gpus_us(numerics, tokens, half), link()
    leaving = leaving_bytes(num_ranks, numerics, half, tokens)
    more = leaving - leaving_bytes(2, numerics, half, tokens)
    hidden = max(measured, wire.base_us + leaving / wire.bytes_per_us)
    return Span(min(measured + more / wire.bytes_per_us, hidden), measured + more / kernels_bytes_per_us(half))


def verdict(spans: tuple[Span, ...], goals: tuple[float, ...]) -> str:
    """Of one step, whose goals are for the whole or for its halves."""
    judged = spans if len(goals) == len(spans) else (spans[0] + spans[1],)
    if all(span.most <= goal for span, goal in zip(judged, goals, strict=True)):
        return "within reach"
    if any(span.least > goal for span, goal in zip(judged, goals, strict=True)):
        return "out of reach"
    return "when more is hidden"


def report() -> str:
    """The whole model as text."""
    wire = link()
    rates = " and ".join(f"{kernels_bytes_per_us(half) / 1e3:.0f}" for half in HALVES)
    lines = [
        f"Model of one host over NVLink, µs: top-{TOP_K} of {NUM_EXPERTS}, hidden 7168, fp8 out, bf16 back.",
        "Not measured: two GPUs' times with the bytes of more. An exchange of bytes alone takes "
        f"{wire.base_us:.1f} µs + bytes at {wire.bytes_per_us / 1e3:.0f} GB/s (four H200);",
        f"our kernels' exact rows leave at {rates} GB/s (two H200). From 'all hidden' to 'no more hidden than on two':",
        "",
        f"  EP{'T':>5}  {'rows':<6}{'MB out':>8}{'dispatch':>12}{'combine':>12}{'both':>13}  goal",
    ]
    lines += [_line(ranks, numerics, tokens) for ranks in RANKS for numerics in ExpertNumerics for tokens in TOKENS]
    return "\n".join([*lines, "", "Published, dispatch + combine:", *(f"  {line}" for line in PUBLISHED)])


def _line(num_ranks: int, numerics: ExpertNumerics, tokens: int) -> str:
    spans = (forecast(num_ranks, numerics, tokens, "dispatch"), forecast(num_ranks, numerics, tokens, "combine"))
    out_mb = sum(leaving_bytes(num_ranks, numerics, half, tokens) for half in HALVES) / 1e6
    goals = GOALS.get((num_ranks, numerics, tokens))
    told = "" if goals is None else f"  {' + '.join(f'{goal:.0f}' for goal in goals)}: {verdict(spans, goals)}"
    figures = "".join(
        f"{f'{one.least:.0f} - {one.most:.0f}':>{width}}"
        for one, width in zip((*spans, spans[0] + spans[1]), (12, 12, 13), strict=True)
    )
    return f"  {num_ranks:>2}{tokens:>5}  {numerics:<6}{out_mb:>8.2f}{figures}{told}"
