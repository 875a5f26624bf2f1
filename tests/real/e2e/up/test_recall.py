"""The next turn of a conversation: prefill takes KV back from decode, and the answer is what it would have been."""

from __future__ import annotations

import random

import httpx
import pytest

from tests.support.up import MODEL, Up, read_metrics

pytestmark = [pytest.mark.needs("nixl", "model", "redis"), pytest.mark.timeout(300)]
TURN_TOKENS = 120
BLOCK_TOKENS = 16


def test_prefill_takes_back_what_decode_has_of_the_turn_before(quiet_after: Up) -> None:
    up, rng = quiet_after, random.Random(11)
    engines = up.engines()
    prefill = next(url for name, url in engines.items() if name.startswith("prefill"))

    def ask(prompt: list[int], mode: str) -> list[int]:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0, "return_token_ids": True}
        answer = httpx.post(f"{up.url}/v1/completions", json=body, headers={"x-tandem-mode": mode}, timeout=120)
        assert answer.status_code == 200, answer.text
        tokens: list[int] = answer.json()["choices"][0]["token_ids"]
        return tokens

    def recalled() -> tuple[float, float]:
        read = read_metrics(prefill)
        return read["tandem_shim_recalls_total"], read["tandem_shim_recalled_tokens_total"]

    before = recalled()
    first = [rng.randrange(1000, 9000) for _ in range(TURN_TOKENS)]
    second = first + ask(first, "local") + [rng.randrange(1000, 9000) for _ in range(20)]
    answer = ask(second, "push")
    after = recalled()
    assert after[0] == before[0] + 1
    assert after[1] - before[1] == TURN_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
    # Both are now computed from caches of their own; the second has never seen what came back.
    assert ask(second, "local") == answer
