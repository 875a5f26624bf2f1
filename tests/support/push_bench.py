"""`make progressive-bench`: what is left to do when prefill is done, with a push in layers, in chunks, and at the end.

Three prefill engines, one of each kind, and one decode engine with a real model; the same prompts go through all in
turn, one at a time, so that whatever else the machine does hits all alike. PrefillDone -> KVReady is prefill's own
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

PATIENT = ("--prefill-s", "500", "--first-token-s", "500", "--answer-s", "500")
"""A GPU compiles kernels for the first requests."""
KINDS = {"layers": "", "chunks": "--no-layerwise", "whole": "--no-progressive"}


async def _push_bytes(site: ProcessSite, engine: str) -> tuple[float, float]:
    """Pushed so far: before prefill was done, and after."""
    text = (await site.client.get(f"{site.engines[engine].url}/metrics")).text
    sizes = {
        when: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        for when in ("early", "last")
        if line.startswith("tandem_shim_push_bytes_total") and f'when="{when}"' in line
    }
    return sizes.get("early", 0.0), sizes.get("last", 0.0)


async def _ask(site: ProcessSite, kind: str, model: str, prompt: list[int]) -> tuple[float, float]:
    """Milliseconds from PrefillDone to KVReady, and to the whole answer."""
    name, url = "tandem_shim_transfer_seconds_sum", site.engines[kind].url
    before, began_at = await site.gauge(url, name), time.monotonic()
    body = {"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 1}
    reply = await site.client.post(f"{site.routers[kind]}/v1/completions", json=body)
    assert reply.status_code == 200, reply.text[:300]
    took_s = time.monotonic() - began_at
    await site.wait_quiet(60.0)
    return 1000 * (await site.gauge(url, name) - before), 1000 * took_s


async def bench(options: argparse.Namespace) -> None:
    """Prints a table for each size of prompts."""
    rng, kinds = random.Random(7), [kind for kind in KINDS if kind in options.kinds.split(",")]
    common = f"{options.engine} --model {options.model} --threads 1 --no-prefix-cache"
    common += f" --max-batch-tokens {options.chunk} --push-least-tokens {options.least}"
    async with ProcessSite(Path(tempfile.mkdtemp())) as site:
        prefills = {kind: f"--role prefill {common} {KINDS[kind]}" for kind in kinds}
        await site.open_engines(d=f"--role decode {common}", **prefills)
        for kind in kinds:
            await site.open_router(kind, kind, "d", "--mode", "push", *PATIENT)
        for size in (int(size) for size in options.tokens.split(",")):
            left: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
            shares = dict.fromkeys(kinds, 0.0)
            for turn in range(-options.warm, options.requests):
                prompt = [rng.randrange(1000, 9000) for _ in range(size)]
                for kind in kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]:
                    before = await _push_bytes(site, kind)
                    asked = await _ask(site, kind, options.model, prompt)
                    after = await _push_bytes(site, kind)
                    if turn >= 0:
                        left[kind].append(asked)
                        shares[kind] += (after[0] - before[0]) / (sum(after) - sum(before)) / options.requests
            _print(size, options, left, shares)


def _print(
    size: int, options: argparse.Namespace, left: dict[str, list[tuple[float, float]]], shares: dict[str, float]
) -> None:
    print(f"{size} tokens in steps of {options.chunk}, {options.requests} requests each; ms")
    print(f"{'':8}{'p50':>9}{'p90':>9}{'max':>9}   to the answer p50   bytes before PrefillDone")
    for kind, turns in left.items():
        lefts = sorted(turn[0] for turn in turns)
        p90 = statistics.quantiles(lefts, n=10, method="inclusive")[-1]
        whole = statistics.median(turn[1] for turn in turns)
        print(
            f"{kind:8}{statistics.median(lefts):9.2f}{p90:9.2f}{lefts[-1]:9.2f}{whole:20.0f}{shares[kind]:27.0%}",
            flush=True,
        )


def main() -> None:
    """Read the flags and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--tokens", default="384,1536", help="tokens of prompts, in turn")
    parser.add_argument("--chunk", type=int, default=512, help="tokens of one step of prefill")
    parser.add_argument("--least", type=int, default=64, help="least tokens, or layers as heavy, of an early WRITE")
    parser.add_argument("--requests", type=int, default=10, help="requests of each kind and size")
    parser.add_argument("--warm", type=int, default=2, help="requests of each kind and size before those")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which kinds")
    parser.add_argument("--model", default="smollm2-135m", help="of all engines")
    parser.add_argument("--engine", default="", help="more flags of all engines: --device cuda, for instance")
    asyncio.run(bench(parser.parse_args()))


if __name__ == "__main__":
    main()
