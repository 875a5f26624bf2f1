"""`tandem bench engine`: tokens per second of the reference engine beside transformers' `generate`.

Same weights, same dtype, same threads, same token ids, in one process and in turns, so that whatever else the machine
does meets both. The tokens are compared too: a benchmark of wrong answers means nothing.

With `--device cuda` the reference engine stands beside itself, decode steps as CUDA graphs and without, with the share
of the GPU's arithmetic and bandwidth that it reaches.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from engine_shim.bench import engine_cuda
from engine_shim.bench.contestants import (
    Contestant,
    Workload,
    has_transformers,
    reference_engine,
    run_reference,
    run_transformers,
    transformers_model,
)
from engine_shim.bench.terminal import say
from router.contract.errors import BadSettings, TandemError

OURS, THEIRS = "reference", "transformers"


@dataclass(frozen=True, slots=True)
class Figures:
    """One contestant's speed at one batch size, tokens per second of all rounds."""

    contestant: str
    batch: int
    phase: str
    """`prefill` or `decode`."""
    tokens_per_s: list[float]

    @property
    def median(self) -> float:
        """Median of the rounds."""
        return median(self.tokens_per_s)


def main(argv: Sequence[str]) -> int:
    """Run the benchmark; returns the exit status."""
    options = _options(argv)
    try:
        if options.device != "cpu":
            return engine_cuda.run(options, _batches(options.batch))
        figures, agreement = _measure(options)
    except TandemError as error:
        print(error.message, file=sys.stderr)
        return 2
    _print_table(figures, options)
    for line in agreement:
        print(line)
    if options.json:
        Path(options.json).write_text(json.dumps(_report(figures, options, agreement), indent=2) + "\n")
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tandem bench engine", description=__doc__)
    add = parser.add_argument
    add("--model", default="smollm2-135m", help="name, checkpoint directory or .gguf file (%(default)s)")
    add("--threads", type=int, default=2, help="threads of both contestants (%(default)s)")
    add("--batch", default="1,8", help="batch sizes, comma-separated (%(default)s)")
    add("--input-tokens", type=int, default=256, help="tokens of each prompt (%(default)s)")
    add("--output-tokens", type=int, default=32, help="tokens to generate for each, at least 2 (%(default)s)")
    add("--rounds", type=int, default=5, help="measured rounds, after one that is not (%(default)s)")
    add("--device", default="cpu", help="cpu, or cuda: the reference engine with and without graphs (%(default)s)")
    add("--dtype", default="", help="on cuda; default: bfloat16")
    add("--numerics", choices=("fast", "invariant"), default="fast", help="of the reference engine (%(default)s)")
    add("--json", metavar="OUT", help="also write the figures to this file")
    return parser.parse_args(argv)


def _batches(text: str) -> list[int]:
    sizes = [int(size) if size.strip().isdigit() else 0 for size in text.split(",")]
    if min(sizes) < 1:
        raise BadSettings(f"--batch {text!r} is no list of positive numbers; write for example 1,8.")
    return sizes


def _contestants(options: argparse.Namespace, max_tokens: int) -> tuple[dict[str, Contestant], int]:
    """Who takes part, and the size of the vocabulary."""
    say("loading the reference engine")
    engine = reference_engine(options.model, options.threads, options.numerics, max_tokens)
    contestants: dict[str, Contestant] = {OURS: lambda work: run_reference(engine, work)}
    if has_transformers():
        say("loading transformers")
        model = transformers_model(options.model)
        contestants[THEIRS] = lambda work: run_transformers(model, work)
    else:
        print("transformers is not installed, so the reference engine runs alone; pip install transformers accelerate")
    return contestants, engine.card.vocab_size


def _measure(options: argparse.Namespace) -> tuple[list[Figures], list[str]]:
    """All figures, and a sentence per batch size on whether the contestants' tokens agree."""
    batches = _batches(options.batch)
    if options.output_tokens < 2 or options.input_tokens < 1 or options.rounds < 1:
        raise BadSettings("--output-tokens must be at least 2, --input-tokens and --rounds at least 1.")
    contestants, vocab_size = _contestants(options, max(batches) * (options.input_tokens + options.output_tokens + 16))
    figures: list[Figures] = []
    agreement: list[str] = []
    for batch in batches:
        rounds = [_workload(options, batch, vocab_size, index) for index in range(options.rounds + 1)]
        found, tokens = _measure_batch(rounds, batch, contestants)
        figures += found
        if THEIRS in contestants:
            equal = sum(ours == theirs for ours, theirs in zip(tokens[OURS], tokens[THEIRS], strict=True))
            agreement.append(f"batch {batch}: {equal} of {len(tokens[OURS])} generated sequences are equal")
    return figures, agreement


def _workload(options: argparse.Namespace, batch: int, vocab_size: int, seed: int) -> Workload:
    draw = random.Random(seed)
    return Workload(
        [[draw.randrange(vocab_size) for _ in range(options.input_tokens)] for _ in range(batch)], options.output_tokens
    )


def _measure_batch(
    rounds: list[Workload], batch: int, contestants: dict[str, Contestant]
) -> tuple[list[Figures], dict[str, list[list[int]]]]:
    """Speeds of all rounds but the first, and the tokens of these rounds."""
    names = list(contestants)
    prefill: dict[str, list[float]] = {name: [] for name in names}
    decode: dict[str, list[float]] = {name: [] for name in names}
    tokens: dict[str, list[list[int]]] = {name: [] for name in names}
    for index, work in enumerate(rounds):
        say(f"batch {batch}: round {index} of {len(rounds) - 1}")
        for name in names if index % 2 else reversed(names):
            timing = contestants[name](work)
            if index:
                prefill[name].append(sum(map(len, work.prompts)) / timing.prefill_s)
                decode[name].append(batch * (work.output_tokens - 1) / timing.decode_s)
                tokens[name] += timing.tokens
    say("")
    return [
        Figures(name, batch, phase, speeds[name])
        for phase, speeds in (("prefill", prefill), ("decode", decode))
        for name in names
    ], tokens


def _print_table(figures: list[Figures], options: argparse.Namespace) -> None:
    print(
        f"{options.model}, float32, {options.threads} threads, {options.input_tokens} tokens in, "
        f"{options.output_tokens} out, {options.numerics} numerics; tokens/s, median of {options.rounds} (min - max)"
    )
    print(f"{'batch':>5} {'phase':8} {OURS:>26} {THEIRS:>26} {'ratio':>6}")
    for ours in (figure for figure in figures if figure.contestant == OURS):
        theirs = _rival(figures, ours)
        ratio = f"{ours.median / theirs.median:6.2f}" if theirs else f"{'-':>6}"
        print(f"{ours.batch:5} {ours.phase:8} {_cell(ours):>26} {_cell(theirs):>26} {ratio}")


def _rival(figures: list[Figures], ours: Figures) -> Figures | None:
    same: Callable[[Figures], bool] = lambda other: (other.batch, other.phase) == (ours.batch, ours.phase)  # noqa: E731
    return next((figure for figure in figures if figure.contestant == THEIRS and same(figure)), None)


def _cell(figures: Figures | None) -> str:
    if figures is None:
        return "-"
    return f"{figures.median:.1f} ({min(figures.tokens_per_s):.1f} - {max(figures.tokens_per_s):.1f})"


def _report(figures: list[Figures], options: argparse.Namespace, agreement: list[str]) -> dict[str, object]:
    return {
        "options": vars(options),
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "torch": torch.__version__,
        "tokens_per_s": [
            {"contestant": f.contestant, "batch": f.batch, "phase": f.phase, "median": f.median, "all": f.tokens_per_s}
            for f in figures
        ],
        "agreement": agreement,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
