"""`make late-bench`: for how long decode holds blocks before their KV is there, its leg sent with prefill's or late.

One prefill and one decode engine with a real model, and two routers before them, one with `decode_lead_s`. Prompts of
mixed sizes go through both in turn, so that whatever else the machine does hits both alike. A block is held in vain
from decode's Registration until the KV cache is whole, as decode's shim tells it; times are those of routers' records.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ProcessSite

BLOCK_TOKENS = 16
LEARNING = 10
"""Requests of each kind that come before those that count."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    held_block_s: float
    ttft_ms: float
    prefill_ms: float


async def _ask(site: ProcessSite, kind: str, prompt: list[int], options: argparse.Namespace) -> Turn:
    body = {"model": options.model, "prompt": prompt, "temperature": 0, "max_tokens": 2, "stream": True}
    reply = await site.client.post(f"{site.routers[kind]}/v1/completions", json=body)
    assert reply.status_code == 200 and "[DONE]" in reply.text, reply.text[:300]
    await site.wait_quiet(60.0)
    (record, *_) = (await site.client.get(f"{site.routers[kind]}/admin/requests")).json()["requests"]
    blocks = -(-len(prompt) // BLOCK_TOKENS)
    ttft_s, prefill_s = record["content_s"] - record["sent_s"], record["prefilled_s"] - record["sent_s"]
    return Turn(record["kv_s"] * blocks, 1000 * ttft_s, 1000 * prefill_s)


async def bench(options: argparse.Namespace) -> None:
    """Prints a table."""
    rng, sizes = random.Random(7), [int(size) for size in options.tokens.split(",")]
    common = f"{options.engine} --model {options.model} --threads 1 --no-prefix-cache"
    common += f" --max-batch-tokens {options.chunk} --push-least-tokens {options.chunk}"
    flags = ("--mode", "push", "--prefill-s", "500", "--first-token-s", "500")
    kinds = {"at once": (), "late": ("--decode-lead-s", str(options.lead))}
    turns: dict[str, list[Turn]] = {kind: [] for kind in kinds}
    async with ProcessSite(Path(tempfile.mkdtemp())) as site:
        await site.open_engines(p=f"--role prefill {common}", d=f"--role decode {common}")
        for kind, more in kinds.items():
            await site.open_router(kind, "p", "d", *flags, *more)
        for turn in range(-LEARNING, options.requests):
            prompt = [rng.randrange(1000, 9000) for _ in range(sizes[turn % len(sizes)])]
            for kind in list(kinds)[:: -1 if turn % 2 else 1]:
                took = await _ask(site, kind, prompt, options)
                if turn >= 0:
                    turns[kind].append(took)
                    print(f"{turn:3} {len(prompt):5} {kind:8} {took}", flush=True)
        choices = (await site.client.get(f"{site.routers['late']}/metrics")).text
        print(*(line for line in choices.splitlines() if line.startswith("tandem_late_choices_total")), sep="\n")
    print(f"{options.requests} requests each of {options.tokens} tokens, lead {options.lead:g} s")
    print(f"{'':9}{'held block-seconds':>19}{'TTFT p50 ms':>13}{'sum ms':>10}{'prefill p50 ms':>16}{'sum ms':>10}")
    for kind, all_ in turns.items():
        ttft, prefill = [one.ttft_ms for one in all_], [one.prefill_ms for one in all_]
        print(
            f"{kind:9}{sum(one.held_block_s for one in all_):19.1f}{statistics.median(ttft):13.0f}{sum(ttft):10.0f}"
            f"{statistics.median(prefill):16.0f}{sum(prefill):10.0f}"
        )


def main() -> None:
    """Read the flags and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--tokens", default="384,768,1536", help="tokens of prompts, in turn")
    parser.add_argument("--chunk", type=int, default=64, help="tokens of one step of prefill")
    parser.add_argument("--requests", type=int, default=12, help="requests of each kind")
    parser.add_argument("--lead", type=float, default=0.1, help="decode_lead_s")
    parser.add_argument("--model", default="smollm2-135m", help="of all engines")
    parser.add_argument("--engine", default="", help="more flags of all engines: --device cuda, for instance")
    asyncio.run(bench(parser.parse_args()))


if __name__ == "__main__":
    main()
