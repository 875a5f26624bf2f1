"""`tandem doctor`: is this deployment sound? It looks at store, router and engines, and moves bytes on each pair.

With `--preflight`: is this machine fit for an engine?
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from router.cli.admin import Start
from router.cli.doctor_findings import Report
from router.cli.doctor_fleet import ANSWER_FOR_S, PairTrials, check_instance, check_pairs, check_router, compare_views
from router.cli.doctor_node import Wanted, check_node, check_trial
from router.cli.doctor_store import check_store
from router.cli.flags import http_url, new_parser
from router.cli.node import look
from router.cli.running import find_running
from router.cli.trial import try_fabric
from router.contract.errors import BadSettings
from router.contract.seal import KEY_VARIABLE, Seal

_DEFAULT_URL = "http://127.0.0.1:8000"
_STORE_VARIABLE = "TANDEM_STORE"
_NAMESPACE_VARIABLE = "TANDEM_NAMESPACE"
_SIZES = "64K,1M,8M"
_CHECKED = """
checked:
  store    it answers and can be written; version, memory limit and policy; its clock against this machine's
  router   it is ready; the instances that it knows are those of the store, in the same epochs
  engines  each answers at its address, is the start that the fleet names, takes requests; counters of bad notices
  pairs    each prefill shim meets each decode shim that fits it, and WRITEs a pattern through NIXL into scratch seats
           there, where every byte is compared; microseconds and GB/s run from the order to its observed end

It is safe while serving: scratch is at most an eighth of a KV cache, is lent for one WRITE, and nothing stays held.
Engines without our shim are only looked at.

--preflight examines the machine that it runs on, before anything is started, as an init container does: EFA devices and
provider, libfabric, GPUDirect, huge pages, memlock, /dev/shm, and a WRITE between two NIXL agents through the fabric
that would be used. Together with --url or --store the deployment is examined as well.
Exit status: 0 when nothing fails, 1 otherwise; warnings and notes do not count.
"""


def main(argv: Sequence[str]) -> int:
    """Print what has been found; return 1 when something fails.

    Raises:
        BadSettings: a size is none, a number of devices is negative, or the store's URL is not understood.
    """
    options = _parser().parse_args(argv)
    sizes_bytes = [_bytes(text) for text in options.sizes.split(",")]
    if options.expect_efa < 0:
        raise BadSettings(f"--expect-efa takes a number of devices, 0 for none, not {options.expect_efa}.")
    running = find_running()
    url = options.url or (running.url if running else _DEFAULT_URL)
    store = options.store or os.environ.get(_STORE_VARIABLE) or (running.store if running and not options.url else "")
    key = os.environ.get(KEY_VARIABLE) or (running.deployment_key if running else "")
    report = Report()
    if options.preflight:
        _examine_node(report, Wanted(options.expect_efa, options.least_gb_per_s), options.fabric)
    if not options.preflight or options.url or options.store:
        seen = Deployment(url.rstrip("/"), store, options.namespace, options.least_gb_per_s)
        asyncio.run(_examine(report, seen, sizes_bytes, Seal(key)))
    print(report.json() if options.json else report.text())
    return 0 if report.is_well else 1


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("doctor", "Find out whether a deployment is sound, and what to do where it is not.")
    parser.epilog = _CHECKED
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    without = f"without it that of the 'tandem up' of this folder, or {_DEFAULT_URL}"
    add("--url", type=http_url, help=f"a router; {without}")
    add("--store", metavar="URL", help=f"without it {_STORE_VARIABLE}, or that of the 'tandem up' of this folder")
    namespace = os.environ.get(_NAMESPACE_VARIABLE, "tandem")
    add("--namespace", default=namespace, help=f"prefix of all keys; without it {_NAMESPACE_VARIABLE}, or tandem")
    add("--sizes", default=_SIZES, metavar="N,N,...", help=f"bytes of the WRITEs, with K or M; default: {_SIZES}")
    add("--least-gb-per-s", type=float, default=0.0, metavar="X", help="a pair, or the trial, that is slower fails")
    add("--preflight", action="store_true", help="examine this machine; no router or store is needed")
    add("--expect-efa", type=int, default=0, metavar="N", help="with --preflight: EFA devices that must be usable here")
    add("--fabric", metavar="BACKEND", help="with --preflight: NIXL's backend; without it LIBFABRIC with EFA, else UCX")
    add("--json", action="store_true", help="print JSON")
    return parser


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where the routers, engines and store to be examined are found."""

    url: str
    """Of a router."""
    store: str
    """Empty when it is not known."""
    namespace: str
    least_gb_per_s: float
    """A pair whose largest WRITE is slower fails."""


def _examine_node(report: Report, wanted: Wanted, fabric: str | None) -> None:
    node = look()
    check_node(report, node, wanted)
    backend = fabric or ("LIBFABRIC" if wanted.num_efa else "UCX")
    check_trial(report, try_fabric(backend, "cuda" if node.num_gpus else "cpu"), wanted)


async def _examine(report: Report, seen: Deployment, sizes_bytes: Sequence[int], seal: Seal) -> None:
    starts: dict[Start, str] = {}
    registered: list[Start] | None = None
    if seen.store:
        records = await check_store(report, seen.store, seen.namespace)
        if records is not None:
            instances = [record.instance for record in records]
            starts |= {(one.instance_id, one.epoch): one.url for one in instances}
            registered = list(starts)
    else:
        report.warn("store", f"No store is known, so it is not examined; give --store or set {_STORE_VARIABLE}.")
    async with httpx.AsyncClient(timeout=ANSWER_FOR_S, trust_env=False) as client:
        known = await check_router(report, client, seen.url)
        compare_views(report, known, registered)
        starts |= known or {}
        found = [await check_instance(report, client, start, where) for start, where in sorted(starts.items())]
        if not starts:
            report.fail("fleet", "No instance is known; start engines with the store or the router that they share.")
        trials = PairTrials(client, sizes_bytes, seal, seen.least_gb_per_s)
        await check_pairs(report, trials, [one for one in found if one is not None])


def _bytes(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdigit() or int(digits) == 0:
        raise BadSettings(f"--sizes takes numbers of bytes such as 4096, 64K or 8M, not {text!r}.")
    return int(digits) * factor
