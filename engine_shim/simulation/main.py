"""`tandem simulate`: seeds of the simulated world, and the Story of one that breaks a promise."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from engine_shim.simulation.ablations import SAFEGUARDS
from engine_shim.simulation.campaign import Findings, campaign
from engine_shim.simulation.report import coverage_table, list_safeguards, story_text, summary_table
from engine_shim.simulation.world import Verdict, World
from router.cli.terminal import LiveLine, bar
from router.contract.errors import BadSettings


def new_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = argparse.ArgumentParser(
        prog="tandem simulate",
        description="Play the router's and the shims' real machines in a seeded world with virtual time, an unkind "
        "network, crashes and stops. The exit status is 1 when a promise is broken; with --ablate it is 0 when the "
        "promise that the safeguard keeps is found broken, and 1 when it is not.",
    )
    add = parser.add_argument
    add("--seeds", type=int, default=1000, metavar="N", help="how many seeds to play (default: %(default)s)")
    add("--first-seed", type=int, default=0, metavar="S", help="the first of them (default: %(default)s)")
    add("--seed", type=int, metavar="S", help="play this one only, and print its Story")
    add("--ablate", metavar="SAFEGUARD", help="switch a safeguard off and look for what breaks")
    add("--list", action="store_true", help="list the safeguards and what breaks without them")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: %(default)s)")
    add("--coverage", action="store_true", help="print how often each row of the tables was visited")
    add("--json", metavar="FILE", help="write the findings there, - for stdout")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Play what `argv` says and return the exit status.

    Raises:
        BadSettings: a safeguard is unknown or a count is less than 1.
    """
    options = new_parser().parse_args(argv)
    if options.list:
        print(list_safeguards())
        return 0
    if options.ablate is not None and options.ablate not in SAFEGUARDS:
        raise BadSettings(f"There is no safeguard {options.ablate!r}; `tandem simulate --list` lists them.")
    if options.seeds < 1 or options.jobs < 1:
        raise BadSettings("--seeds and --jobs must be at least 1.")
    off = frozenset() if options.ablate is None else frozenset({options.ablate})
    if options.seed is not None:
        return _replay(options.seed, off)
    began_at = time.monotonic()
    findings = _play_all(options, off)
    _report(options, findings, time.monotonic() - began_at)
    return _status(options.ablate, findings)


def _replay(seed: int, off: frozenset[str]) -> int:
    verdict = World(seed, off).run(tells=True)
    print(story_text(verdict))
    return 1 if verdict.violations else 0


def _play_all(options: argparse.Namespace, off: frozenset[str]) -> Findings:
    line, findings = LiveLine(), Findings()
    began_at = time.monotonic()
    for part in campaign(options.first_seed, options.seeds, off, options.jobs):
        findings.add(part)
        pace = findings.seeds / max(time.monotonic() - began_at, 1e-3)
        line.show(f"{bar(findings.seeds, options.seeds)} seeds, {pace:.0f}/s, {len(findings.bad)} bad")
        if options.ablate is not None and _found(options.ablate, findings) is not None:
            break
    line.clear()
    return findings


def _found(safeguard: str, findings: Findings) -> Verdict | None:
    """The first seed in which the promise that this safeguard keeps was the first to break."""
    wanted = SAFEGUARDS[safeguard].breaks
    return next((verdict for verdict in findings.bad if verdict.violations[0].invariant is wanted), None)


def _status(ablated: str | None, findings: Findings) -> int:
    if ablated is None:
        return 1 if findings.bad else 0
    return 1 if _found(ablated, findings) is None else 0


def _report(options: argparse.Namespace, findings: Findings, took_s: float) -> None:
    ablated = options.ablate
    if options.json is not None:
        _write_json(options.json, findings, took_s)
    if options.json != "-":
        shown = findings.bad[0] if findings.bad else None
        if ablated is not None:
            shown = _found(ablated, findings) or shown
        if shown is not None:
            print(f"{story_text(shown)}\n\nreplay: {_replay_command(shown.seed, ablated)}\n")
        print(summary_table(findings, took_s))
        if options.coverage:
            print(f"\n{coverage_table(findings)}")
        if ablated is not None:
            verdict = "breaks" if _found(ablated, findings) is not None else "does NOT break"
            print(f"\nwithout {ablated}, {SAFEGUARDS[ablated].breaks} {verdict} within {findings.seeds} seeds")


def _replay_command(seed: int, ablated: str | None) -> str:
    return f"tandem simulate --seed {seed}" + (f" --ablate {ablated}" if ablated is not None else "")


def _write_json(path: str, findings: Findings, took_s: float) -> None:
    bad = [
        {"seed": verdict.seed, "violations": [asdict(violation) for violation in verdict.violations]}
        for verdict in findings.bad
    ]
    found = {
        "seeds": findings.seeds,
        "requests": findings.requests,
        "took_s": round(took_s, 3),
        "counts": dict(sorted(findings.counts.items())),
        "bad": bad,
    }
    text = json.dumps(found, indent=1)
    if path == "-":
        print(text)
        return
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
