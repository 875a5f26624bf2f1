"""`tandem bench serve` as the second load of a chaos run: a process that knows nothing of the hurts.

The first load judges every token; this one shows that what users measure with ends, too, and no request of it hangs.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

from tests.support.chaos_load import DEADLINE_S, GRACE_S, MODEL

PATIENCE_S = DEADLINE_S + 2 * GRACE_S
"""The routers end every request sooner, so whoever waits so long has been hung."""
RATE_PER_S = 1.0
END_S = 30.0
"""Start, and the last answers."""


async def bench_serve(url: str, requests: int, folder: Path) -> list[str]:
    """`requests` requests of a bench have ended, about one a second. The answer is what was wrong with them."""
    told = folder / "bench.json"
    with (folder / "bench.log").open("wb") as log:
        argv = [*_argv(url, requests), "--json", str(told)]
        child = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            async with asyncio.timeout(requests / RATE_PER_S + PATIENCE_S + END_S):
                status = await child.wait()
        except TimeoutError:
            return [f"bench serve did not end within {requests / RATE_PER_S + PATIENCE_S + END_S:g} s"]
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
    if status != 0:
        return [f"bench serve ended with status {status}: {(folder / 'bench.log').read_text()[-300:]}"]
    records = json.loads(told.read_text())["loads"][0]["records"]
    ends = Counter(record["failure"] or "whole" for record in records)
    problems = [f"bench serve had {ends['leg_timeout']} requests without an end"] if ends["leg_timeout"] else []
    if len(records) != requests:
        problems.append(f"bench serve has {len(records)} records of {requests} requests")
    print(f"bench serve beside it: {', '.join(f'{end} {count}' for end, count in ends.most_common())}")
    return problems


def _argv(url: str, requests: int) -> list[str]:
    words = [sys.executable, "-m", "router.cli.main", "bench", "serve", "--url", url, "--model", MODEL, "--records"]
    words += ["--rate", f"{RATE_PER_S:g}", "--requests", str(requests), "--timeout-s", f"{PATIENCE_S:g}"]
    return [*words, "--input-tokens", "80", "--output-tokens", "12", "--endpoint", "completions"]
