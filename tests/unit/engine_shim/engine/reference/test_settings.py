from __future__ import annotations

import pytest

from engine_shim.engine.reference.settings import ExpertTransport, Numerics, ReferenceSettings
from router.contract.errors import BadSettings


def test_only_the_model_must_be_named():
    settings = ReferenceSettings("m")
    assert (settings.block_tokens, settings.numerics, settings.prefix_cache) == (16, Numerics.FAST, True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_tokens": 0},
        {"max_num_seqs": 0},
        {"max_batch_tokens": 0},
        {"num_blocks": -1},
        {"kv_bytes": -1},
        {"max_context_tokens": -1},
        {"num_threads": -1},
        {"dtype": "int8"},
        {"device": "tpu"},
        {"num_gpus": -1},
        {"numerics": Numerics.INVARIANT, "block_tokens": 48},
    ],
    ids=str,
)
def test_settings_that_no_engine_can_run_with_are_refused(wrong):
    with pytest.raises(BadSettings, match=next(reversed(wrong))):
        ReferenceSettings("m", **wrong)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"expert_overlap": True}, "use --ep 2 or more"),
        ({"num_ranks": 2, "expert_transport": ExpertTransport.NVLINK}, "need GPUs; use --device cuda"),
        ({"device": "cuda", "expert_transport": ExpertTransport.NVLINK}, "use --ep 2 or more"),
        ({"device": "cuda", "num_ranks": 2, "num_gpus": 3}, "3 GPUs for 2 expert ranks"),
    ],
    ids=str,
)
def test_expert_ranks_that_cannot_be_are_refused(wrong, sentence):
    with pytest.raises(BadSettings, match=sentence):
        ReferenceSettings("m", **wrong)
