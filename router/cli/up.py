"""`tandem up`: store, engines and router on this machine, together until Ctrl-C."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from router.cli import preflight
from router.cli.flags import add_engine_flags, engine_choice_of, new_parser, port_number
from router.cli.local_fleet import LocalFleet
from router.cli.running import Running, noted
from router.cli.setup import DEFAULT_MODEL, SetUp, engine_programs
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
    parser = new_parser("up", "Start store, engines and router on this machine; Ctrl-C stops them all.")
    add = parser.add_argument
    add("--prefill", type=int, metavar="N", help="prefill engines; without it 1, or 0 with --both")
    add("--decode", type=int, metavar="N", help="decode engines; without it 1, or 0 with --both")
    add("--both", type=int, default=0, metavar="N", help="engines that do whole requests, without a hand-over")
    add("--model", default=DEFAULT_MODEL, metavar="NAME|DIR|GGUF", help="the model of all engines")
    add("--mode", choices=[mode.value for mode in Mode], default="push", help="how KV cache reaches decode")
    add("--host", default="127.0.0.1", help="address that the router listens on")
    add("--port", type=port_number, default=8000, help="port that the router listens on")
    add("--store", default="embedded", metavar="URL", help="'embedded', redis://HOST:PORT, or 'none' for no ledger")
    add("--logs", type=Path, default=Path(".tandem/logs"), metavar="DIR", help="where logs are kept")
    add_engine_flags(parser)
    return parser


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
    waiting = ["store", *(program.name for program in engine_programs(fleet.setup, "")), "router"]

    def announce(phase: str, fact: str) -> None:
        waiting.remove(phase)
        line.say(f"{time.monotonic() - began_at:6.1f} s  {phase:<12}{fact}")

    async def tick() -> None:
        while True:
            line.show(f"{time.monotonic() - began_at:6.1f} s  waiting for {', '.join(waiting)}; logs in {logs}")
            await asyncio.sleep(_TICK_S)

    ticking = asyncio.ensure_future(tick())
    try:
        await fleet.start(announce)
    finally:
        ticking.cancel()
        line.clear()
    line.say(_ready_text(fleet, logs, time.monotonic() - began_at))
    with noted(Running(os.getpid(), fleet.url, fleet.store_url, fleet.setup.deployment_key)):
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
