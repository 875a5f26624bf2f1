"""How many prefill and decode engines a load needs, by the lines with which the router's cost model predicts.

    prefill   s = base + slope * uncached prompt tokens; a pool is as busy as PREFILL_BUSY and not more
    decode    s per token = base + slope * sequences; so many engines that TPOT holds and the KV cache fits

`python -m deploy.sizing` prints a table for the router's first guesses; give those of your engines, as `tandem bench
serve` shows them (time to the first token by prompt length, and time per token by concurrency), or with `--measured`
the file that `tandem bench engine --batch 1,8 --json FILE` has written.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from math import ceil, inf
from pathlib import Path
from statistics import linear_regression

from router.contract.errors import BadSettings
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


def measured(text: str) -> Engines:
    """Lines through what `tandem bench engine` measured of the reference engine; its JSON is `text`.

    One prompt length is no line: a prefill's base is in its time per token.

    Raises:
        BadSettings: the file is of something else, or of fewer than two batch sizes.
    """
    try:
        rows = [row for row in json.loads(text)["tokens_per_s"] if row["contestant"] == "reference"]
        decode = {row["batch"]: row["batch"] / row["median"] for row in rows if row["phase"] == "decode"}
        prefill = {row["batch"]: 1 / row["median"] for row in rows if row["phase"] == "prefill"}
    except (ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise BadSettings(f"This is no file of `tandem bench engine --json` ({error!r}); measure again.") from error
    if len(decode) < 2 or not prefill:
        raise BadSettings("One batch size says nothing of the next; measure with `tandem bench engine --batch 1,8`.")
    line = linear_regression(list(decode), list(decode.values()))
    step_sequence_s = max(line.slope, 1e-9)
    return Engines(0.0, prefill[min(prefill)], max(line.intercept, 0.0), step_sequence_s)


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


def positive(text: str) -> float:
    """The `type` of a flag whose value is above 0."""
    value = float(text)
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def share(text: str) -> float:
    """The `type` of a flag whose value is from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to 1")
    return value


def main() -> int:
    """The table is on standard output; the exit status is 2 for what says nothing of engines."""
    parser = argparse.ArgumentParser(description="How many prefill and decode engines a load needs.")
    add, known = parser.add_argument, Engines()
    add(
        "--measured",
        type=Path,
        metavar="FILE",
        help="of `tandem bench engine --json FILE`; the flags below go before it",
    )
    add("--prefill-base-s", type=float, help=f"seconds of an empty prefill; without it {known.prefill_base_s:g}")
    add("--prefill-tokens-per-s", type=positive, help=f"of one engine; without it {1 / known.prefill_token_s:g}")
    add("--step-base-s", type=float, help=f"seconds of a step of no sequence; without it {known.step_base_s:g}")
    add("--step-sequence-s", type=positive, help=f"that one more adds; without it {known.step_sequence_s:g}")
    add("--kv-tokens", type=int, help=f"that decode's KV cache holds; without it {known.kv_tokens}")
    add("--tpot-s", type=positive, default=0.03, help="seconds per output token that must hold")
    add("--cached-share", type=share, default=0.0, help="of prompts, found in prefill's cache")
    given = parser.parse_args()
    try:
        engines = measured(given.measured.read_text("utf-8")) if given.measured else known
    except (BadSettings, OSError) as error:
        print(f"{given.measured}: {error}", file=sys.stderr)
        return 2
    named = {name: getattr(given, name) for name in ("prefill_base_s", "step_base_s", "step_sequence_s", "kv_tokens")}
    if given.prefill_tokens_per_s is not None:
        named["prefill_token_s"] = 1 / given.prefill_tokens_per_s
    engines = replace(engines, **{name: value for name, value in named.items() if value is not None})
    print(table(engines, given.tpot_s, given.cached_share))
    return 0


if __name__ == "__main__":
    sys.exit(main())
