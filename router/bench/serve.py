"""`tandem bench serve`: what users of an OpenAI-compatible server would feel under a given load."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from router.bench.compare import SET_UPS, compare, medians, ratios, set_ups_of
from router.bench.machine import describe_machine
from router.bench.report import comparison_tables, describe
from router.bench.schedule import parse_rate
from router.bench.stories import typical
from router.bench.workload import Measured, Subject, Workload, add_workload_flags, workload_of
from router.cli.flags import add_engine_flags, engine_choice_of, new_parser
from router.cli.local_fleet import free_port
from router.cli.setup import DEFAULT_MODEL, SetUp
from router.cli.terminal import LiveLine
from router.contract.errors import BadSettings

_Result = TypeVar("_Result")


def main(argv: Sequence[str]) -> int:
    """Load a server, or compare set-ups, print tables and write JSON; return 1 when a load had no whole answer.

    Raises:
        TandemError: settings are wrong, the server does not answer, a set-up does not start.
    """
    options = _parser().parse_args(argv)
    if options.json is not None and not options.json.resolve().parent.is_dir():
        raise BadSettings(f"There is no folder for {options.json}; make it or give another file with --json.")
    work = workload_of(options)
    rates = [parse_rate(rate) for rate in options.rate.split(",")]
    machine = describe_machine()
    if machine.is_busy:
        print(
            f"This machine is busy (load {machine.load_average:.1f} on {machine.cores} cores): expect noisy figures.\n"
        )
    result, loads = (_compare if options.compare else _load)(options, work, rates)
    if options.json is not None:
        head = {"benchmark": "serve", "machine": machine, "workload": work, "rates_per_s": rates}
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(head | result, enc_hook=str)))
    return 0 if all(load.summary.num_whole for load in loads) else 1


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "bench serve",
        "Open-loop Poisson load on an OpenAI URL, or on set-ups that are started for a comparison. "
        "Latencies run from the instant a request was due.",
    )
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="server to load")
    add("--model", metavar="NAME", help=f"without it, the first that the server lists; to compare, {DEFAULT_MODEL}")
    add("--api-key", metavar="KEY", help="key to send; without it, OPENAI_API_KEY of the environment")
    add("--rate", default="1", metavar="R,R,...", help="requests per second, one load each; inf sends all at once")
    add("--seed", type=int, default=0, metavar="N", help="seed of arrival times, lengths and prompts")
    add("--json", type=Path, metavar="OUT", help="write settings, machine and results to this file")
    add("--records", action="store_true", help="write every request to the JSON file, too")
    add_workload_flags(parser)
    add("--compare", metavar="A,B,...", help=f"start and compare set-ups out of {', '.join(SET_UPS)}, one at a time")
    add("--rounds", type=int, default=3, metavar="N", help="rounds of a comparison; figures are medians over them")
    add("--prefill", type=int, default=1, metavar="N", help="prefill engines of push, pull and local")
    add("--decode", type=int, default=1, metavar="N", help="decode engines of push, pull and local")
    add("--logs", type=Path, default=Path(".tandem/logs/bench"), metavar="DIR", help="where a comparison keeps logs")
    add_engine_flags(parser)
    return parser


def _load(
    options: argparse.Namespace, work: Workload, rates: Sequence[float]
) -> tuple[dict[str, object], list[Measured]]:
    line = LiveLine()
    subject = Subject(work, options.url, options.model, options.api_key or os.environ.get("OPENAI_API_KEY"))

    async def measure() -> list[Measured]:
        async with subject:
            return [await subject.measure(rate, options.seed, line) for rate in rates]

    loads = _run(measure())
    if subject.counts_words:
        print("The server has no /tokenize for this model, so prompt lengths are words; see the tokens it reports.\n")
    for load in loads:
        print(f"{options.url} {subject.model} at {load.rate_per_s:g} requests/s: {describe(load.summary)}\n")
    return {
        "url": options.url,
        "model": subject.model,
        "loads": [_told(load, options.records) for load in loads],
    }, loads


def _compare(
    options: argparse.Namespace, work: Workload, rates: Sequence[float]
) -> tuple[dict[str, object], list[Measured]]:
    options.model = options.model or DEFAULT_MODEL
    base = SetUp(
        engine=engine_choice_of(options), prefill=options.prefill, decode=options.decode, port=free_port("127.0.0.1")
    )
    set_ups = set_ups_of(options.compare, base)
    runs = _run(compare(set_ups, work, rates, range(options.seed, options.seed + options.rounds), options.logs))
    for rate in rates:
        print(comparison_tables(medians(runs, rate), rate, options.rounds))
    result: dict[str, object] = {
        "set_ups": set_ups,
        "medians": [{"rate_per_s": rate, "of": medians(runs, rate)} for rate in rates],
        "ratios": [{"rate_per_s": rate, "of": ratios(medians(runs, rate))} for rate in rates],
        "runs": [
            {
                "set_up": run.set_up,
                "round": run.round,
                "hand_overs_ms": run.hand_overs_ms,
                "timeline": typical(run.stories),
                **_told(run.measured, options.records),
            }
            for run in runs
        ],
    }
    return result, [run.measured for run in runs]


def _told(load: Measured, with_records: bool) -> dict[str, object]:
    told: dict[str, object] = {"rate_per_s": load.rate_per_s, "seed": load.seed, "summary": load.summary}
    return told | ({"records": load.records} if with_records else {})


def _run(work: Coroutine[Any, Any, _Result]) -> _Result:  # Any: the two types that await never uses
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
