"""`tandem up`: store, engines and router on this machine, together until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from router.cli import preflight
from router.cli.local_fleet import LocalFleet
from router.cli.setup import DEFAULT_MODEL, EngineChoice, SetUp
from router.cli.terminal import LiveLine
from router.contract.instance import Mode

_TICK_S = 0.2


def main(argv: Sequence[str]) -> int:
    """Run the set-up that `argv` describes until SIGINT, SIGTERM or SIGHUP; return 0 then.

    Raises:
        DeploymentError: something is known to be wrong, or a process refused its settings.
        TandemError: a process died; all others are stopped.
    """
    options = _parser().parse_args(argv)
    setup = _setup_of(options)
    preflight.check(setup)
    return asyncio.run(_run(setup, options.logs))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tandem up",
        description="Start store, engines and router on this machine; Ctrl-C stops them all.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_engine_flags(parser)
    parser.add_argument("--prefill", type=int, metavar="N", help="prefill engines (1, or 0 with --both)")
    parser.add_argument("--decode", type=int, metavar="N", help="decode engines (1, or 0 with --both)")
    parser.add_argument("--both", type=int, default=0, metavar="N", help="engines that do whole requests: no hand-over")
    parser.add_argument("--mode", choices=[m.value for m in Mode], default="push", help="how KV cache reaches decode")
    parser.add_argument("--host", default="127.0.0.1", help="address that the router listens on")
    parser.add_argument("--port", type=int, default=8000, help="port that the router listens on")
    parser.add_argument("--store", default="embedded", metavar="URL", help="'embedded' or redis://HOST:PORT")
    parser.add_argument("--logs", type=Path, default=Path(".tandem/logs"), metavar="DIR", help="where logs are kept")
    return parser


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the flags that say which engines there are, whoever starts them."""
    parser.add_argument("--model", default=DEFAULT_MODEL, metavar="NAME|DIR|GGUF", help="the model of all engines")
    parser.add_argument("--model-name", metavar="NAME", help="served name (None: the engine's own)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where engines compute")
    parser.add_argument(
        "--numerics", choices=("fast", "invariant"), default="fast", help="engines' floating-point order"
    )
    parser.add_argument("--block-tokens-prefill", type=int, metavar="N", help="tokens a KV block of prefill engines")
    parser.add_argument("--block-tokens-decode", type=int, metavar="N", help="tokens a KV block of other engines")
    parser.add_argument(
        "--kv-bytes", type=int, metavar="N", help="KV cache of each engine, bytes (None: the engine's own)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of each engine (None: cores / engines)")


def engine_choice_of(options: argparse.Namespace) -> EngineChoice:
    """Return what `add_engine_flags` made of the command line."""
    return EngineChoice(
        model=options.model,
        model_name=options.model_name,
        device=options.device,
        numerics=options.numerics,
        block_tokens_prefill=options.block_tokens_prefill,
        block_tokens_decode=options.block_tokens_decode,
        kv_bytes=options.kv_bytes,
        threads=options.threads,
    )


def _setup_of(options: argparse.Namespace) -> SetUp:
    split = 0 if options.both else 1
    return SetUp(
        engine=engine_choice_of(options),
        prefill=split if options.prefill is None else options.prefill,
        decode=split if options.decode is None else options.decode,
        both=options.both,
        mode=Mode(options.mode),
        host=options.host,
        port=options.port,
        store=options.store,
    )


async def _run(setup: SetUp, logs: Path) -> int:
    """Serve until a signal (then return 0) or a death (then raise it); nothing is left running either way."""
    stop = asyncio.Event()
    fleet = LocalFleet(setup, logs)

    def on_signal() -> None:
        if stop.is_set():  # asked twice: no more patience
            fleet.children.kill()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    line = LiveLine()
    serving = asyncio.ensure_future(_serve(fleet, logs, line))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        line.show("stopping ...")
        serving.cancel()
        stopping.cancel()
        await asyncio.wait({serving})
        await fleet.aclose()
        line.clear()
    if not serving.cancelled():
        serving.result()
    return 0


async def _serve(fleet: LocalFleet, logs: Path, line: LiveLine) -> None:
    """Start the fleet, tell of each phase, and stay until something dies."""
    began_at = time.monotonic()

    def announce(phase: str, fact: str) -> None:
        line.say(f"{time.monotonic() - began_at:6.1f} s  {phase:<12}{fact}")

    async def tick() -> None:
        while True:
            line.show(f"{time.monotonic() - began_at:6.1f} s  starting; logs in {logs}")
            await asyncio.sleep(_TICK_S)

    ticking = asyncio.ensure_future(tick())
    try:
        await fleet.start(announce)
    finally:
        ticking.cancel()
        line.clear()
    line.say(_ready_text(fleet, logs, time.monotonic() - began_at))
    await fleet.children.guard(asyncio.Event().wait())


def _ready_text(fleet: LocalFleet, logs: Path, took_s: float) -> str:
    setup, model = fleet.setup, fleet.model
    counts = ((setup.prefill, "prefill"), (setup.decode, "decode"), (setup.both, "both"))
    engines = " + ".join(f"{count} {role}" for count, role in counts if count)
    body = (
        f'{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "Why is the sky blue?"}}]}}'
    )
    return (
        f"\nReady in {took_s:.1f} s: {fleet.url} serves {model} ({engines}, mode {setup.mode.value}).\n"
        f"  curl -N {fleet.url}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{body}'\n"
        f"Logs in {logs}; Ctrl-C stops everything.\n"
    )
