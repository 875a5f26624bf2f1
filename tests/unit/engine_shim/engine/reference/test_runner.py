from __future__ import annotations

import pytest
import torch

from engine_shim.engine.reference import runner as runner_module
from engine_shim.engine.reference.batch import Chunk, make_batch
from engine_shim.engine.reference.block_names import BlockNames
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.kv_cache import KVCache
from engine_shim.engine.reference.model import Model
from engine_shim.engine.reference.runner import Runner
from engine_shim.engine.reference.sampler import Sampled, Sampler
from engine_shim.engine.reference.sequence import Sequence
from engine_shim.engine.reference.settings import Numerics
from engine_shim.engine.reference.text_stream import TextStream
from router.contract.kv import KVLayout
from tests.support.tiny_models import TINY_LLAMA, ask, prompt_of, tiny_tokenizer, tiny_weights


@pytest.fixture
def runner():
    torch.set_num_threads(1)
    cache = KVCache(KVLayout(2, 2, 8, 16, 32, "float32"), torch.device("cpu"))
    model = Model(TINY_LLAMA, tiny_weights(), 256, kernels_of(Numerics.INVARIANT))
    with torch.inference_mode():
        yield Runner(model, cache, Sampler((258,)))


def sequence(num_tokens: int, table: list[int], **sampling) -> Sequence:
    request = ask(str(num_tokens), prompt_of(num_tokens), **sampling)
    made = Sequence(request, 0, BlockNames(16), TextStream(tiny_tokenizer(), request.sampling))
    made.table = table
    return made


def test_only_sequences_that_are_complete_get_a_token(runner):
    long, short = sequence(40, [0, 1, 2]), sequence(3, [5])
    ((only, sampled),) = runner.run([(long, 25), (short, 3)])
    assert only is short
    assert isinstance(sampled, Sampled)
    long.num_computed, short.num_computed = 25, 3
    short.append(sampled.token_id)
    outcomes = runner.run([(long, 15), (short, 1)])
    assert {made.seq_id for made, _ in outcomes} == {"40", "3"}


def test_prompt_log_probabilities_do_not_depend_on_chunks(runner, monkeypatch):
    whole, cut = sequence(40, [0, 1, 2], prompt_logprobs=1), sequence(40, [3, 4, 5], prompt_logprobs=1)
    runner.run([(whole, 40)])
    monkeypatch.setattr(runner_module, "HEAD_ROWS", 7)
    for count in (1, 20, 19):
        runner.run([(cut, count)])
        cut.num_computed += count
    assert len(whole.prompt_logprobs) == 40
    assert cut.prompt_logprobs == whole.prompt_logprobs
    logits = runner._model.logits(runner._model.forward(_all_rows(whole), runner._cache))
    expected = logits.log_softmax(-1)[range(39), whole.tokens[1:40]]
    assert [entry.logprob for entry in whole.prompt_logprobs[1:]] == pytest.approx(expected.tolist(), abs=1e-5)


def test_rows_computed_again_add_no_log_probabilities(runner):
    made = sequence(20, [0, 1], prompt_logprobs=0)
    runner.run([(made, 10)])
    first = list(made.prompt_logprobs)
    assert len(first) == 11
    runner.run([(made, 20)])
    assert made.prompt_logprobs[:11] == first
    assert len(made.prompt_logprobs) == 20


def _all_rows(made: Sequence):
    return make_batch([Chunk(made.tokens[:40], 0, made.table, 40)], 16, torch.device("cpu"))
