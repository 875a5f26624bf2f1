"""A byte-level fuzzer of the HTTP door: `python -m tests.support.fuzz --seconds 600`; `--replay SEED.NUMBER` for one.

Each client sends its bytes and must be answered or closed in time; no answer may be a 500, 502 or 504, since the
engines behind are well; afterwards nothing is on its way, a good request is served, and memory has stayed.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil

from tests.support.fuzz_cases import Ending, FuzzCase, fuzz_case
from tests.support.routers import BODY, PATH, Rig, rig

ARRIVAL_S = 0.4
"""Of the router: a request that never becomes whole is over by then."""
SILENT_S = 10.0
"""A connection on which nothing has come for so long hangs."""
REST_S = 0.05
"""Nothing more is expected once an answer has come and nothing followed for so long."""
AT_ONCE = 24
FORBIDDEN = {500, 502, 504}
GROWTH_BYTES = 48 << 20
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass(slots=True)
class Findings:
    """What a run has seen."""

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    num_cases: int = 0


async def play(port: int, case: FuzzCase, found: Findings) -> None:
    """One client sends its bytes and takes what comes."""
    found.num_cases += 1
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = b""
    try:
        for piece in case.pieces:
            if writer.transport.is_closing():
                break
            writer.write(piece)
            await asyncio.sleep(0)
        if case.ending is Ending.WAIT:
            heard = await _listen(reader)
        elif case.ending is Ending.CLOSE:
            writer.close()
    except TimeoutError:
        found.faults.append(f"{case.name}: neither an answer nor an end within {SILENT_S} s")
    except ConnectionError:
        pass  # the router may close while we still send
    finally:
        writer.transport.abort()
    statuses = [int(status) for status in _STATUS.findall(heard)]
    found.statuses.update(statuses)
    found.faults += [f"{case.name}: status {status}" for status in statuses if status in FORBIDDEN]


async def _listen(reader: asyncio.StreamReader) -> bytes:
    heard = b""
    while True:
        try:
            piece = await asyncio.wait_for(reader.read(65536), REST_S if heard else SILENT_S)
        except TimeoutError:
            if heard:
                return heard
            raise
        if not piece:
            return heard
        heard += piece


async def fuzz(r: Rig, seed: int, numbers: range, until_s: float = float("inf")) -> Findings:
    """Play these cases, AT_ONCE at a time, until the clock says so; then look what is left."""
    found = Findings()
    waiting = iter(numbers)

    async def worker() -> None:
        for number in waiting:
            if time.monotonic() > until_s:
                return
            await play(r.port, fuzz_case(seed, number), found)
            if number % 64 == 0:
                for engine in r.engines:
                    engine.seen.clear()
                    engine.taken_back.clear()

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    try:
        await r.come_to_rest()
    except TimeoutError:
        found.faults.append("something is still on its way long after the last client has left")
    answer = await r.client.post(PATH, json=BODY)
    if answer.status_code != 200:
        found.faults.append(f"a good request got {answer.status_code} afterwards")
    return found


def _used_bytes() -> int:
    """Resident memory, less what the allocator keeps for later: holes between small blocks are no leak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


async def _run(given: argparse.Namespace) -> int:
    async with rig(data_path=given.data_path, arrival_s=ARRIVAL_S) as r:
        if given.replay:
            seed, number = map(int, given.replay.split("."))
            print(repr(fuzz_case(seed, number)))
            found = await fuzz(r, seed, range(number, number + 1))
        else:
            await fuzz(r, given.seed + 1, range(2000))
            before = _used_bytes()
            found = await fuzz(r, given.seed, range(10**9), time.monotonic() + given.seconds)
            kept = psutil.Process().memory_info().rss
            grown = _used_bytes() - before
            if grown > GROWTH_BYTES:
                found.faults.append(f"memory has grown by {grown >> 20} MiB")
            free = (kept - before - grown) / 2**20
            print(f"memory has grown by {grown / 2**20:.1f} MiB, and by {free:.1f} MiB that the allocator had kept")
    print(f"{found.num_cases} cases, statuses {dict(sorted(found.statuses.items()))}, {len(found.faults)} faults")
    print("\n".join(found.faults[:50]))
    return 1 if found.faults else 0


def main() -> int:
    """Status 0: no fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data-path", default="hook", choices=("hook", "asgi"))
    parser.add_argument("--replay", default="", help="SEED.NUMBER of one case")
    return asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
