from __future__ import annotations

import math

import pytest
import torch

from engine_shim.engine.port import TokenLogprob
from engine_shim.engine.reference.logprobs import token_logprobs

LOGITS = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.1, 0.2, 0.3, 0.4]]).log() + 7


def test_the_tokens_own_and_the_likeliest_are_given():
    first, second = token_logprobs(LOGITS, [2, 3], 2)
    assert (first.token_id, second.token_id) == (2, 3)
    assert first.logprob == pytest.approx(math.log(0.125), abs=1e-5)
    assert [token for token, _ in second.top] == [3, 2]
    assert [value for _, value in second.top] == pytest.approx([math.log(0.4), math.log(0.3)], abs=1e-5)


def test_no_more_than_asked_and_no_more_than_there_are():
    assert token_logprobs(LOGITS, [0, 0], 0)[0] == TokenLogprob(0, pytest.approx(math.log(0.5), abs=1e-5))
    assert len(token_logprobs(LOGITS, [0, 0], 9)[0].top) == 4
