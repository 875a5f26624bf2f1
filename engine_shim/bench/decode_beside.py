"""`python -m engine_shim.bench.decode_beside`: does decode feel KV that arrives meanwhile?

An engine decodes a full batch in this process, whose writer thread receives WRITEs of one prompt's size from another
process at a steady rate, into memory beside the engine's cache. Series with and without them take turns. The sender
computes nothing: on one GPU, a prefill beside decode would take the GPU from it, which is another matter.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import threading
import time
from collections.abc import Sequence

from engine_shim.bench.transfer_agent import AgentProcess, AgentSpec, Card, fabric_of
from engine_shim.bench.transfer_case import SPREAD, Case, Shape
from engine_shim.bench.transfer_figures import quantile
from engine_shim.bench.transfer_memory import take_memory
from engine_shim.engine.port import SamplingParams, SequenceRequest
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.engine.reference.opening import open_engine
from engine_shim.engine.reference.settings import ReferenceSettings
from engine_shim.fabric.port import CopyOp
from engine_shim.fabric.writer import Expect, FabricEvent, NoticeCame, WriterThread
from router.contract.errors import TandemError
from router.contract.kv import KVOrder

BLOCK_TOKENS = 16
WARM_STEPS = 20
RING_BYTES = 1 << 30


def main(argv: Sequence[str]) -> int:
    """Measure and print; returns the exit status."""
    options = _options(argv)
    try:
        asyncio.run(_measure(options))
    except TandemError as error:
        print(error.message, file=sys.stderr)
        return 2
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine_shim.bench.decode_beside", description=__doc__)
    add = parser.add_argument
    add("--model", default="seeded-qwen3-8b", help="what decodes (%(default)s)")
    add("--device", default="cuda:0", help="of all (%(default)s)")
    add("--batch", type=int, default=8, help="sequences (%(default)s)")
    add("--context-tokens", type=int, default=4096, help="of each (%(default)s)")
    add("--steps", type=int, default=400, help="of a series (%(default)s)")
    add("--rounds", type=int, default=2, help="series with and without (%(default)s)")
    add("--prompt-tokens", type=int, default=16384, help="of a WRITE, in the model's own KV (%(default)s)")
    add("--rate", type=float, default=8.0, help="WRITEs a second (%(default)s)")
    add("--run-blocks", type=int, default=16, help="neighbouring blocks; 0: one run (%(default)s)")
    add("--path", default="auto", help="direct, staged, mapped, auto (%(default)s)")
    return parser.parse_args(argv)


async def _measure(options: argparse.Namespace) -> None:
    tokens = options.context_tokens + WARM_STEPS + 2 * options.rounds * options.steps + BLOCK_TOKENS
    engine = open_engine(
        ReferenceSettings(
            options.model,
            device=options.device,
            num_blocks=options.batch * (tokens // BLOCK_TOKENS + 1),
            max_num_seqs=options.batch,
            max_batch_tokens=8192,
            prefix_cache=False,
        )
    )
    block_bytes = engine.layout.block_bytes
    plain = Shape(KVOrder.BLOCK_FIRST)
    case = Case(
        CopyOp.WRITE, options.path, plain, plain, options.prompt_tokens // BLOCK_TOKENS, block_bytes, options.run_blocks
    )
    memory = take_memory(options.device, SPREAD * case.num_bytes)
    arrived: list[float] = []

    def on_event(event: FabricEvent) -> None:
        if isinstance(event, NoticeCame):
            arrived.append(time.monotonic())

    spec = AgentSpec("target@1", options.device, SPREAD * case.num_bytes, "UCX", RING_BYTES)
    writer = WriterThread(lambda: fabric_of(spec, memory.region), asyncio.get_running_loop(), on_event)
    metadata = await writer.start()
    writer.tell(Expect(1))
    sender = AgentProcess(AgentSpec("source@1", options.device, SPREAD * case.num_bytes, "UCX", RING_BYTES))
    try:
        card: Card = sender.ask("card")
        await writer.add_peer(card.metadata)
        sender.ask("meet", Card(spec.name, metadata, memory.region))
        await _take_turns(options, engine, sender, case, arrived)
    finally:
        sender.end()
        writer.stop()


async def _take_turns(
    options: argparse.Namespace, engine: ReferenceEngine, sender: AgentProcess, case: Case, arrived: list[float]
) -> None:
    _fill(engine, options)
    for number in range(WARM_STEPS):
        engine.step()
        sender.ask("move", case, b"warm %d" % number)
    series: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.rounds):
        for beside in (False, True):
            series[beside] += await asyncio.to_thread(_series, options, engine, sender if beside else None, case)
    print(
        f"{options.model}, {options.batch} sequences of {options.context_tokens} tokens; {case.num_bytes / 1e9:.2f} GB "
        f"{options.path}, {options.rate:g} a second, runs of {options.run_blocks} blocks; {len(arrived)} arrived"
    )
    print(f"{'WRITEs':>7} {'steps':>6} {'ITL p50 ms':>10} {'p90':>7} {'p99':>7} {'max':>7}")
    for beside, times in series.items():
        shares = " ".join(f"{1000 * quantile(times, share):7.3f}" for share in (0.9, 0.99, 1.0))
        print(f"{'yes' if beside else 'no':>7} {len(times):6} {1000 * quantile(times, 0.5):10.3f} {shares}")
    print(f"p99 with / without: {quantile(series[True], 0.99) / quantile(series[False], 0.99):.3f}")


def _fill(engine: ReferenceEngine, options: argparse.Namespace) -> None:
    """All sequences decode."""
    draw = random.Random(1)
    sampling = SamplingParams(max_tokens=1 << 20, temperature=0.0, ignore_eos=True)
    for number in range(options.batch):
        prompt = tuple(draw.randrange(engine.card.vocab_size) for _ in range(options.context_tokens))
        engine.add(SequenceRequest(str(number), prompt, sampling))
    while engine.load().queued_prompt_tokens or engine.load().running_seqs < options.batch:
        engine.step()


def _series(
    options: argparse.Namespace, engine: ReferenceEngine, sender: AgentProcess | None, case: Case
) -> list[float]:
    """Seconds of each step, while the sender, if there is one, WRITEs at the rate."""
    over = threading.Event()

    def send(agent: AgentProcess) -> None:
        number, next_at = 0, time.monotonic()
        while not over.is_set():
            agent.ask("move", case, b"%d" % number)
            number, next_at = number + 1, next_at + 1 / options.rate
            over.wait(max(0.0, next_at - time.monotonic()))

    thread = threading.Thread(target=send, args=(sender,)) if sender is not None else None
    if thread is not None:
        thread.start()
    times = []
    for _ in range(options.steps):
        began_at = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - began_at)
    over.set()
    if thread is not None:
        thread.join()
    return times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
