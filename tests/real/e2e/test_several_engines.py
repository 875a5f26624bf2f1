"""Two prefill and two decode engines behind one router, by `tandem up`: all of them work, every pair moves KV right."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from engine_shim.engine.reference.checkpoint import locate
from engine_shim.engine.reference.tokenizer import Tokenizer
from tests.support.law_cases import ANSWER_TOKENS, law_cases
from tests.support.oracle import golden_answers
from tests.support.up import read_metrics, tandem_up

pytestmark = [pytest.mark.needs("nixl", "model", "redis"), pytest.mark.timeout(300)]

NUM_CASES = 16
CLEAR_GAP = 0.01
"""Between the likeliest two logits of every token: then the order of a sum cannot change the answer."""
FLAGS = (
    "--prefill",
    "2",
    "--decode",
    "2",
    "--block-tokens-decode",
    "8",
    "--kv-bytes",
    "300000000",
)


async def test_two_prefill_and_two_decode_engines_share_the_work(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(locate("smollm2-135m"))
    golden = golden_answers()
    made = law_cases(lambda text: tokenizer.encode(text, add_special_tokens=False))
    cases = [case for case in made if min(golden[case.name]["gaps"]) > CLEAR_GAP][-NUM_CASES:]
    with tandem_up(tmp_path, *FLAGS) as up:
        async with httpx.AsyncClient(base_url=up.url, timeout=120) as client:
            bodies = [
                case.body
                | {"model": "smollm2-135m", "temperature": 0, "max_tokens": ANSWER_TOKENS, "return_token_ids": True}
                for case in cases
            ]
            replies = await asyncio.gather(
                *(client.post(case.endpoint, json=body) for case, body in zip(cases, bodies, strict=True))
            )
        answers = [reply.json()["choices"][0]["token_ids"] for reply in replies]
        assert answers == [golden[case.name]["tokens"] for case in cases]
        metrics = {name: read_metrics(url) for name, url in up.engines().items()}
        assert len(metrics) == 4
        work = {name: figures["tandem_shim_generation_tokens_total"] for name, figures in metrics.items()}
        assert all(tokens > NUM_CASES / 4 for tokens in work.values()), work  # a prefill engine computes one token each
        up.wait_quiet()
