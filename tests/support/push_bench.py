"""`make progressive-bench`: what is left to do when prefill is done, with a push in chunks and with one at the end.

Two prefill engines, one of each kind, and one decode engine with a real model; the same prompts go through both in
turn, one at a time, so that whatever else the machine does hits both alike. PrefillDone -> KVReady is prefill's own
`tandem_shim_transfer_seconds`, whose sum grows by one request's time when one request has been served.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from pathlib import Path

from tests.support.processes import ProcessSite

KINDS = {"chunks": "", "whole": "--no-progressive"}


async def _early_share(site: ProcessSite, engine: str) -> float:
    text = (await site.client.get(f"{site.engines[engine].url}/metrics")).text
    sizes = {
        when: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        for when in ("early", "last")
        if line.startswith("tandem_shim_push_bytes_total") and f'when="{when}"' in line
    }
    return sizes["early"] / max(sum(sizes.values()), 1.0)


async def _ask(site: ProcessSite, kind: str, prompt: list[int]) -> tuple[float, float]:
    """Milliseconds from PrefillDone to KVReady, and to the whole answer."""
    name, url = "tandem_shim_transfer_seconds_sum", site.engines[kind].url
    before, began_at = await site.gauge(url, name), time.monotonic()
    body = {"model": "smollm2-135m", "prompt": prompt, "temperature": 0, "max_tokens": 1}
    reply = await site.client.post(f"{site.routers[kind]}/v1/completions", json=body)
    assert reply.status_code == 200, reply.text[:300]
    took_s = time.monotonic() - began_at
    await site.wait_quiet(60.0)
    return 1000 * (await site.gauge(url, name) - before), 1000 * took_s


async def bench(options: argparse.Namespace) -> None:
    """Prints a table."""
    rng, common = (
        random.Random(7),
        f"--threads 1 --max-batch-tokens {options.chunk} --no-prefix-cache --push-least-tokens {options.chunk}",
    )
    left: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    async with ProcessSite(Path(tempfile.mkdtemp())) as site:
        prefills = {kind: f"--role prefill {common} {flags}" for kind, flags in KINDS.items()}
        await site.open_engines(d=f"--role decode {common}", **prefills)
        for kind in KINDS:
            await site.open_router(kind, kind, "d", "--mode", "push", "--prefill-s", "500", "--first-token-s", "500")
            await _ask(site, kind, [rng.randrange(1000, 9000) for _ in range(40)])
        for turn in range(options.requests):
            prompt = [rng.randrange(1000, 9000) for _ in range(options.tokens)]
            for kind in list(KINDS)[:: -1 if turn % 2 else 1]:
                left[kind].append(await _ask(site, kind, prompt))
                print(
                    f"{turn:3} {kind:8} {left[kind][-1][0]:9.2f} ms left, {left[kind][-1][1]:9.0f} ms in all",
                    flush=True,
                )
        print(f"{options.tokens} tokens in steps of {options.chunk}, {options.requests} requests each; ms")
        print(f"{'':8}{'p50':>9}{'p90':>9}{'max':>9}   to the answer p50   bytes before PrefillDone")
        for kind, turns in left.items():
            lefts = sorted(turn[0] for turn in turns)
            p90 = statistics.quantiles(lefts, n=10, method="inclusive")[-1]
            whole = statistics.median(turn[1] for turn in turns)
            share = await _early_share(site, kind)
            print(f"{kind:8}{statistics.median(lefts):9.2f}{p90:9.2f}{lefts[-1]:9.2f}{whole:20.0f}{share:27.0%}")


def main() -> None:
    """Read the flags and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of a prompt")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of one step of prefill")
    parser.add_argument("--requests", type=int, default=10, help="requests of each kind")
    asyncio.run(bench(parser.parse_args()))


if __name__ == "__main__":
    main()
