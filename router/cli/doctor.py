"""`tandem doctor`: is this deployment sound? It looks at store, router and engines, and moves bytes on each pair."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence

import httpx

from router.cli.doctor_findings import Report
from router.cli.doctor_fleet import ANSWER_FOR_S, Start, check_instance, check_pairs, check_router, compare_views
from router.cli.doctor_store import check_store
from router.cli.flags import new_parser
from router.cli.running import find_running
from router.contract.errors import BadSettings
from router.contract.seal import KEY_VARIABLE, Seal

_DEFAULT_URL = "http://127.0.0.1:8000"
_STORE_VARIABLE = "TANDEM_STORE"
_SIZES = "64K,1M,8M"
_CHECKED = """
checked:
  store    it answers and can be written; version, memory limit and policy; its clock against this machine's
  router   it is ready; the instances that it knows are those of the store, in the same epochs
  engines  each answers at its address, is the start that the fleet names, takes requests; counters of bad notices
  pairs    each prefill shim meets each decode shim that fits it, and WRITEs a pattern through NIXL into scratch seats
           there, where every byte is compared; microseconds and GB/s run from the order to its observed end

It is safe while serving: scratch is at most an eighth of a KV cache, is lent for one WRITE, and nothing stays held.
Engines without our shim are only looked at. A fabric on EFA is tested as it is; its driver is not examined.
Exit status: 0 when nothing fails, 1 otherwise; warnings do not count.
"""


def main(argv: Sequence[str]) -> int:
    """Print what has been found; return 1 when something fails.

    Raises:
        BadSettings: a size is none, or the store's URL is not understood.
    """
    options = _parser().parse_args(argv)
    sizes_bytes = [_bytes(text) for text in options.sizes.split(",")]
    running = find_running()
    url = options.url or (running.url if running else _DEFAULT_URL)
    store = options.store or os.environ.get(_STORE_VARIABLE) or (running.store if running and not options.url else "")
    key = os.environ.get(KEY_VARIABLE) or (running.deployment_key if running else "")
    report = asyncio.run(_examine(url.rstrip("/"), (store, options.namespace), sizes_bytes, Seal(key)))
    print(report.json() if options.json else report.text())
    return 0 if report.is_well else 1


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("doctor", "Find out whether a deployment is sound, and what to do where it is not.")
    parser.epilog = _CHECKED
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--url", help=f"a router; without it that of the 'tandem up' of this folder, or {_DEFAULT_URL}")
    add("--store", metavar="URL", help=f"without it {_STORE_VARIABLE}, or that of the 'tandem up' of this folder")
    add("--namespace", default="tandem", help="prefix of all keys in the store; default: tandem")
    add("--sizes", default=_SIZES, metavar="N,N,...", help=f"bytes of the WRITEs, with K or M; default: {_SIZES}")
    add("--json", action="store_true", help="print JSON")
    return parser


async def _examine(url: str, store: tuple[str, str], sizes_bytes: Sequence[int], seal: Seal) -> Report:
    report = Report()
    starts: dict[Start, str] = {}
    registered: list[Start] | None = None
    if store[0]:
        records = await check_store(report, *store)
        if records is not None:
            instances = [record.instance for record in records]
            starts |= {(one.instance_id, one.epoch): one.url for one in instances}
            registered = list(starts)
    else:
        report.warn("store", f"No store is known, so it is not examined; give --store or set {_STORE_VARIABLE}.")
    async with httpx.AsyncClient(timeout=ANSWER_FOR_S, trust_env=False) as client:
        known = await check_router(report, client, url)
        compare_views(report, known, registered)
        starts |= known or {}
        found = [await check_instance(report, client, start, where) for start, where in sorted(starts.items())]
        if not starts:
            report.fail("fleet", "No instance is known; start engines with the store or the router that they share.")
        await check_pairs(report, client, [one for one in found if one is not None], sizes_bytes, seal)
    return report


def _bytes(text: str) -> int:
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:].upper(), 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdigit() or int(digits) == 0:
        raise BadSettings(f"--sizes takes numbers of bytes such as 4096, 64K or 8M, not {text!r}.")
    return int(digits) * factor
