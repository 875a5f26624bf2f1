"""`tandem bench engine --device cuda`: prefill and decode of the reference engine, with graphs and without."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from engine_shim.bench.contestants import Timing, Workload, run_reference
from engine_shim.bench.engine_rates import DATASHEET_TFLOPS, Ceilings, Rates, measure_ceilings, rates
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.engine.reference.kv_cache import TORCH_DTYPES
from engine_shim.engine.reference.opening import LoadedModel, load_model
from engine_shim.engine.reference.settings import Numerics, ReferenceSettings

CHUNK_TOKENS = 8192
"""Rows of one pass: long prompts are computed in chunks of so many."""


@dataclass(frozen=True, slots=True)
class Row:
    """One batch size, medians of the rounds."""

    batch: int
    input_tokens: int
    graphs: bool
    prefill_tokens_per_s: float
    prefill_tflops: float
    itl_ms: float
    decode_gb_per_s: float
    equal_sequences: int
    """Generated sequences that are the same with graphs and without."""
    num_sequences: int


def run(options: argparse.Namespace, batches: Sequence[int]) -> int:
    """Measure, print and write; returns the exit status. Raises ModelUnusable or BadSettings."""
    tokens = max(batches) * (options.input_tokens + options.output_tokens + 16)
    plain = ReferenceSettings(
        options.model,
        device=options.device,
        dtype=options.dtype,
        num_blocks=tokens // 16 + 1,
        max_num_seqs=max(batches),
        max_batch_tokens=CHUNK_TOKENS,
        numerics=Numerics(options.numerics),
        prefix_cache=False,
        cuda_graphs=False,
    )
    ceilings = measure_ceilings(options.device)
    loaded = load_model(plain)
    graphs = ReferenceSettings(**{name: getattr(plain, name) for name in plain.__slots__} | {"cuda_graphs": True})
    engines = {
        with_graphs: ReferenceEngine(loaded.config, loaded.weights, loaded.tokenizer, settings)
        for with_graphs, settings in ((False, plain), (True, graphs))
    }
    rows = [row for batch in batches for row in _measure(options, batch, loaded, engines)]
    _print(options, ceilings, rows)
    if options.json:
        report = {
            "options": vars(options),
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "ceilings": asdict(ceilings),
            "rows": [asdict(row) for row in rows],
        }
        Path(options.json).write_text(json.dumps(report, indent=2) + "\n")
    return 0


def _measure(
    options: argparse.Namespace, batch: int, loaded: LoadedModel, engines: dict[bool, ReferenceEngine]
) -> list[Row]:
    timings: dict[bool, list[tuple[Timing, Rates]]] = {False: [], True: []}
    dtype = TORCH_DTYPES[options.dtype or "bfloat16"]
    for index in range(options.rounds + 1):
        draw = random.Random(index)
        size = loaded.config.vocab_size
        prompts = [[draw.randrange(size) for _ in range(options.input_tokens)] for _ in range(batch)]
        work = Workload(prompts, options.output_tokens)
        for with_graphs, engine in engines.items():
            timing = run_reference(engine, work)
            if index:
                timings[with_graphs].append((timing, rates(loaded.config, work, dtype, timing)))
    generated = [[tokens for timing, _ in found for tokens in timing.tokens] for found in timings.values()]
    equal = sum(one == other for one, other in zip(*generated, strict=True))
    return [
        Row(
            batch=batch,
            input_tokens=options.input_tokens,
            graphs=with_graphs,
            prefill_tokens_per_s=median(batch * options.input_tokens / timing.prefill_s for timing, _ in found),
            prefill_tflops=median(rate.prefill_tflops for _, rate in found),
            itl_ms=median(rate.itl_ms for _, rate in found),
            decode_gb_per_s=median(rate.decode_gb_per_s for _, rate in found),
            equal_sequences=equal,
            num_sequences=len(generated[0]),
        )
        for with_graphs, found in timings.items()
    ]


def _print(options: argparse.Namespace, ceilings: Ceilings, rows: list[Row]) -> None:
    print(
        f"{options.model}, {options.dtype or 'bfloat16'}, {torch.cuda.get_device_name()}, {options.input_tokens} "
        f"tokens in, {options.output_tokens} out, medians of {options.rounds}; in this run a large product reaches "
        f"{ceilings.tflops:.0f} TFLOP/s, a large copy {ceilings.gb_per_s:.0f} GB/s; MFU is of {DATASHEET_TFLOPS:.0f}"
    )
    print(
        f"{'batch':>5} {'graphs':>6} {'prefill tokens/s':>16} {'TFLOP/s':>8} {'MFU %':>6} "
        f"{'ITL ms':>8} {'GB/s':>6} {'of copy %':>9} {'equal':>8}"
    )
    for row in rows:
        print(
            f"{row.batch:5} {'yes' if row.graphs else 'no':>6} {row.prefill_tokens_per_s:16.0f} "
            f"{row.prefill_tflops:8.0f} {100 * row.prefill_tflops / DATASHEET_TFLOPS:6.1f} {row.itl_ms:8.2f} "
            f"{row.decode_gb_per_s:6.0f} {100 * row.decode_gb_per_s / ceilings.gb_per_s:9.1f} "
            f"{row.equal_sequences:>4}/{row.num_sequences}"
        )
