"""`make recall-bench`: conversations of several turns, with the return path and without it, on this machine.

Two prefill engines, so that a turn may meet one that has nothing of it, and one decode engine with a real model; two
routers before the same engines. Each conversation goes through one router; both kinds take turns, with prompts of their
own, so that whatever else the machine does hits both alike and neither finds what the other has left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from pathlib import Path

from tests.support.processes import ProcessSite

KINDS = {"computed": (), "returned": ("--return-path", "true")}


async def _turn(
    site: ProcessSite, kind: str, prompt: list[int], options: argparse.Namespace
) -> tuple[list[int], float]:
    """The answer, and milliseconds of prefill's leg."""
    body = {"model": options.model, "prompt": prompt, "temperature": 0, "max_tokens": options.answer}
    body |= {"return_token_ids": True, "ignore_eos": True}
    reply = await site.client.post(f"{site.routers[kind]}/v1/completions", json=body)
    assert reply.status_code == 200, reply.text[:300]
    (record, *_) = (await site.client.get(f"{site.routers[kind]}/admin/requests")).json()["requests"]
    return reply.json()["choices"][0]["token_ids"], 1000 * (record["prefilled_s"] - record["sent_s"])


async def bench(options: argparse.Namespace) -> None:
    """Prints a table."""
    rng = random.Random(7)
    common, flags = (
        f"{options.engine} --model {options.model} --threads 1 --max-batch-tokens {options.chunk}",
        ("--mode", "push", "--prefill-s", "500"),
    )
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    async with ProcessSite(Path(tempfile.mkdtemp())) as site:
        recalls = "--recall-wait-for-s 10"
        prefills = {name: f"--role prefill {common} {recalls}" for name in ("p0", "p1")}
        await site.open_engines(d=f"--role decode {common}", **prefills)
        for kind, more in KINDS.items():
            policy = ("--prefill-policy", "round_robin", "--first-token-s", "500")
            await site.open_router(kind, "p0,p1", "d", *flags, *policy, *more)
        for number in range(options.conversations):
            for kind in list(KINDS)[:: -1 if number % 2 else 1]:
                prompt = [rng.randrange(1000, 9000) for _ in range(options.tokens)]
                for turn in range(options.turns):
                    answer, prefill_ms = await _turn(site, kind, prompt, options)
                    print(
                        f"{number:3} {kind:9} turn {turn + 1}, {len(prompt):5} tokens: {prefill_ms:8.0f} ms", flush=True
                    )
                    if turn:
                        took[kind].append(prefill_ms)
                    prompt = prompt + answer + [rng.randrange(1000, 9000) for _ in range(options.question)]
        tokens = sum(
            [await site.gauge(site.engines[name].url, "tandem_shim_recalled_tokens_total") for name in prefills]
        )
    print(f"prefill of turns after the first, ms; {tokens:.0f} tokens came back")
    for kind, all_ in took.items():
        print(f"{kind:9} p50 {statistics.median(all_):8.0f}  mean {statistics.fmean(all_):8.0f}  of {len(all_)}")


def main() -> None:
    """Read the flags and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--tokens", type=int, default=512, help="tokens of a first prompt")
    parser.add_argument("--answer", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--question", type=int, default=32, help="tokens that each turn adds")
    parser.add_argument("--turns", type=int, default=4, help="turns of a conversation")
    parser.add_argument("--conversations", type=int, default=4, help="conversations of each kind")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of one step of prefill")
    parser.add_argument("--model", default="smollm2-135m", help="of all engines")
    parser.add_argument("--engine", default="", help="more flags of all engines: --device cuda, for instance")
    asyncio.run(bench(parser.parse_args()))


if __name__ == "__main__":
    main()
