"""How many prefill and decode engines a load needs, by the lines with which the router's cost model predicts.

    prefill   s = base + slope * uncached prompt tokens; a pool is as busy as PREFILL_BUSY and not more
    decode    s per token = base + slope * sequences; so many engines that TPOT holds and the KV cache fits

`python -m deploy.sizing` prints a table for the router's first guesses; give those of your engines, as `tandem bench
serve` shows them: time to the first token by prompt length, and time per token by concurrency.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from math import ceil

from router.core.pace import PREFILL_GUESS, STEP_GUESS

PREFILL_BUSY = 0.7
"""Share of its time that a prefill engine computes: above it, the time in its queue grows faster than the load."""
LENGTHS = ((1024, 128), (1024, 1024), (4096, 256), (16384, 128), (16384, 1024))
RATES = (1.0, 4.0, 16.0)


@dataclass(frozen=True)
class Engines:
    """What one prefill and one decode engine can do. Times are seconds."""

    prefill_base_s: float = PREFILL_GUESS[0]
    prefill_token_s: float = PREFILL_GUESS[1]
    step_base_s: float = STEP_GUESS[0]
    step_sequence_s: float = STEP_GUESS[1]
    kv_tokens: int = 1_000_000
    """Tokens that decode's KV cache holds."""


@dataclass(frozen=True)
class Load:
    """Requests per second of one shape."""

    rate_per_s: float
    input_tokens: int
    output_tokens: int
    cached_share: float = 0.0
    """Of the prompt, found in prefill's cache."""
    tpot_s: float = 0.03


def prefills(load: Load, engines: Engines) -> int:
    """Prefill engines for a load."""
    uncached = load.input_tokens * (1 - load.cached_share)
    busy = load.rate_per_s * (engines.prefill_base_s + engines.prefill_token_s * uncached)
    return max(1, ceil(busy / PREFILL_BUSY))


def decodes(load: Load, engines: Engines) -> int | None:
    """Decode engines for a load; None where not even one sequence meets its time per token or has room."""
    fits = engines.kv_tokens // (load.input_tokens + load.output_tokens)
    most = min(fits, (load.tpot_s - engines.step_base_s) / engines.step_sequence_s)
    if most < 1:
        return None
    # A sequence runs for output * (base + slope * n) seconds, so n = rate * output * (base + slope * n) of them run.
    return max(1, ceil(load.rate_per_s * load.output_tokens * (engines.step_base_s / most + engines.step_sequence_s)))


def table(engines: Engines, tpot_s: float, cached_share: float) -> str:
    """Engines by lengths and rates, as Markdown."""
    lines = [
        "| prompt + answer, tokens | " + " | ".join(f"{rate:g} requests/s" for rate in RATES) + " |",
        "|---|" + "---|" * len(RATES),
    ]
    for input_tokens, output_tokens in LENGTHS:
        cells = []
        for rate in RATES:
            load = Load(rate, input_tokens, output_tokens, cached_share, tpot_s)
            num_decodes = decodes(load, engines)
            cells.append(f"{prefills(load, engines)} P + {num_decodes} D" if num_decodes else "none is quick enough")
        lines.append(f"| {input_tokens} + {output_tokens} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """The table is on standard output."""
    known = Engines()
    parser = argparse.ArgumentParser(description="How many prefill and decode engines a load needs.")
    parser.add_argument(
        "--prefill-base-s", type=float, default=known.prefill_base_s, help="seconds of an empty prefill"
    )
    parser.add_argument("--prefill-tokens-per-s", type=float, default=1 / known.prefill_token_s)
    parser.add_argument(
        "--step-base-s", type=float, default=known.step_base_s, help="seconds of a step of one sequence"
    )
    parser.add_argument("--step-sequence-s", type=float, default=known.step_sequence_s, help="that one more adds")
    parser.add_argument("--kv-tokens", type=int, default=known.kv_tokens, help="that decode's KV cache holds")
    parser.add_argument("--tpot-s", type=float, default=0.03, help="seconds per output token that must hold")
    parser.add_argument("--cached-share", type=float, default=0.0, help="of prompts, found in prefill's cache")
    given = parser.parse_args()
    engines = Engines(
        given.prefill_base_s,
        1 / given.prefill_tokens_per_s,
        given.step_base_s,
        given.step_sequence_s,
        given.kv_tokens,
    )
    print(table(engines, given.tpot_s, given.cached_share))


if __name__ == "__main__":
    main()
