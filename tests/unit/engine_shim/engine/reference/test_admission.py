from __future__ import annotations

import pytest

from engine_shim.engine.port import ModelCard, Purpose
from engine_shim.engine.reference.admission import check
from router.contract.errors import BadRequest, ContextTooLong, NoSeats
from router.contract.kv import KVLayout
from tests.support.tiny_models import ask

CARD = ModelCard("m", "llama", 50, 100, (2,), "digest", 0)
LAYOUT = KVLayout(1, 1, 2, 4, 10, "float32")


def test_what_fits_is_let_in():
    check(ask("a", range(39)), CARD, LAYOUT)
    check(ask("a", (0, 99), logit_bias=((99, 1.0),), stop_token_ids=(0,)), CARD, LAYOUT)


@pytest.mark.parametrize(
    ("error", "param", "request_"),
    [
        (BadRequest, "prompt", ask("a", ())),
        (BadRequest, "prompt", ask("a", (1, 100))),
        (BadRequest, "prompt", ask("a", (-1,))),
        (BadRequest, "logit_bias", ask("a", (1,), logit_bias=((100, 1.0),))),
        (BadRequest, "stop_token_ids", ask("a", (1,), stop_token_ids=(-1,))),
        (BadRequest, "prompt_logprobs", ask("a", (1,), prompt_logprobs=0, purpose=Purpose.RECEIVE)),
        (ContextTooLong, "prompt", ask("a", range(50))),
        (NoSeats, None, ask("a", range(40))),
    ],
)
def test_what_can_never_run_is_refused(error, param, request_):
    with pytest.raises(error) as caught:
        check(request_, CARD, LAYOUT)
    assert caught.value.param == param
