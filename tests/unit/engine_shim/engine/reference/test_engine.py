from __future__ import annotations

import pytest
import torch

from engine_shim.engine.port import FinishReason, Purpose, SequenceFailed
from engine_shim.engine.reference import sampler as sampler_module
from engine_shim.engine.reference.settings import Numerics
from router.contract.errors import BadRequest, ContextTooLong, EngineDown, ModelUnusable, NoSeats, StaleAttempt
from router.contract.kv import KVOrder
from tests.support.tiny_models import (
    TINY_LLAMA,
    TINY_QWEN3,
    ask,
    drain,
    generate,
    only,
    outs_of,
    prompt_of,
    tiny_engine,
    tokens_of,
)

CONFIGS = pytest.mark.parametrize("config", [TINY_LLAMA, TINY_QWEN3], ids=["llama", "qwen3"])


@CONFIGS
@pytest.mark.parametrize(
    "settings",
    [{"max_batch_tokens": 7}, {"block_tokens": 8}, {"kv_order": KVOrder.LAYER_FIRST}, {"kv_order": KVOrder.HEAD_MAJOR}],
)
def test_tokens_do_not_depend_on_chunks_batches_or_layout(config, settings, monolithic):
    prompts = [prompt_of(length, seed=length) for length in (1, 2, 15, 16, 17, 40, 90)]
    together = generate(tiny_engine(config, **settings), *(ask(str(len(p)), p) for p in prompts))
    assert together == [monolithic(prompt, config) for prompt in prompts]
    assert len({tuple(tokens) for tokens in together}) == len(prompts)


def test_fast_numerics_give_the_same_tokens_where_no_two_logits_are_close(monolithic):
    prompts = [prompt_of(length, seed=length) for length in (3, 16, 33, 70)]
    engine = tiny_engine(numerics=Numerics.FAST, max_batch_tokens=20)
    assert generate(engine, *(ask(str(len(p)), p) for p in prompts)) == [monolithic(p) for p in prompts]


def test_a_cached_prefix_is_reused_and_reported(monolithic):
    engine = tiny_engine()
    shared = prompt_of(40)
    first, second = (*shared, 1, 2, 3), (*shared, 7, 8)
    generate(engine, ask("a", first))
    engine.add(ask("b", second))
    events = drain(engine)
    assert tokens_of(events, "b") == monolithic(second)
    assert {out.num_cached_tokens for out in outs_of(events, "b")} == {32}
    assert (engine.load().prefix_hit_tokens, engine.load().prefix_query_tokens) == (32, 85)
    disabled = tiny_engine(prefix_cache=False)
    generate(disabled, ask("a", first), ask("b", second))
    assert disabled.load().prefix_hit_tokens == 0


def test_generated_tokens_are_cached_for_the_next_turn(monolithic):
    engine = tiny_engine()
    prompt = prompt_of(20)
    (answer,) = generate(engine, ask("turn1", prompt, max_tokens=30))
    second = (*prompt, *answer, 5, 6)
    engine.add(ask("turn2", second))
    events = drain(engine)
    assert outs_of(events, "turn2")[0].num_cached_tokens == 48
    assert tokens_of(events, "turn2") == monolithic(second)


def test_preemption_under_pressure_gives_equal_tokens(monolithic):
    engine = tiny_engine(num_blocks=12, max_batch_tokens=32)
    prompts = [prompt_of(30 + index, seed=index) for index in range(5)]
    tokens = generate(engine, *(ask(str(i), p, max_tokens=40) for i, p in enumerate(prompts)))
    assert engine.load().preemptions > 0
    assert tokens == [monolithic(prompt, max_tokens=40) for prompt in prompts]
    assert engine.load().free_blocks == 12


def test_seeded_sampling_does_not_depend_on_company_or_preemption():
    prompts = [prompt_of(30, seed=index) for index in range(4)]
    requests = [ask(str(i), p, max_tokens=40, temperature=1.0, seed=i, top_p=0.9) for i, p in enumerate(prompts)]
    crowded = tiny_engine(num_blocks=10)
    together = generate(crowded, *requests)
    assert crowded.load().preemptions > 0
    assert together == [generate(tiny_engine(), request)[0] for request in requests]


def test_unseeded_sequences_draw_from_the_engines_own_stream():
    requests = [ask(str(i), prompt_of(10), temperature=1.0, max_tokens=30) for i in range(2)]
    first, second = generate(tiny_engine(seed=3), *requests)
    assert first != second
    assert generate(tiny_engine(seed=3), *requests) == [first, second]
    assert generate(tiny_engine(seed=4), *requests) != [first, second]


def test_a_full_context_ends_a_sequence():
    engine = tiny_engine(max_context_tokens=32)
    engine.add(ask("a", prompt_of(30), max_tokens=100))
    outs = outs_of(drain(engine), "a")
    assert [out.finish_reason for out in outs] == [None, FinishReason.LENGTH]


def test_a_full_cache_ends_a_sequence_that_is_alone():
    engine = tiny_engine(num_blocks=2)
    (tokens,) = generate(engine, ask("a", prompt_of(30), max_tokens=100))
    assert len(tokens) == 2
    assert engine.card.max_context_tokens == 32


def test_stop_strings_cut_the_text_and_end_the_sequence():
    letters = tuple((token, 100.0) for token in range(ord("a"), ord("z") + 1))
    (plain,) = generate(tiny_engine(), ask("a", prompt_of(12), logit_bias=letters))
    text = bytes(plain).decode()
    stop = text[4:6]
    engine = tiny_engine()
    engine.add(ask("a", prompt_of(12), logit_bias=letters, stop=(stop,)))
    outs = outs_of(drain(engine), "a")
    assert (outs[-1].finish_reason, outs[-1].stop_reason) == (FinishReason.STOP, stop)
    assert "".join(out.text for out in outs) == text[: text.index(stop)]


def test_a_stop_token_ends_the_sequence_and_is_no_text(monolithic):
    prompt = prompt_of(12)
    tokens = monolithic(prompt)
    engine = tiny_engine()
    engine.add(ask("a", prompt, stop_token_ids=(tokens[3],)))
    outs = outs_of(drain(engine), "a")
    end = tokens.index(tokens[3])
    assert [token for out in outs for token in out.token_ids] == tokens[: end + 1]
    assert (outs[-1].finish_reason, outs[-1].stop_reason, outs[-1].text) == (FinishReason.STOP, tokens[3], "")


def test_prompt_log_probabilities_come_with_the_first_output_and_skip_the_cache():
    engine = tiny_engine(max_batch_tokens=9)
    prompt = prompt_of(40)
    generate(engine, ask("warm", prompt))
    engine.add(ask("a", prompt, prompt_logprobs=2, max_tokens=3))
    outs = outs_of(drain(engine), "a")
    assert outs[0].num_cached_tokens == 0
    assert [len(out.prompt_logprobs) for out in outs] == [40, 0, 0]
    none, *rest = outs[0].prompt_logprobs
    assert none is None
    assert [entry.token_id for entry in rest] == list(prompt[1:])
    assert all(len(entry.top) == 2 and entry.logprob <= entry.top[0][1] <= 0 for entry in rest)
    whole = tiny_engine(max_batch_tokens=500)
    whole.add(ask("b", prompt, prompt_logprobs=2, max_tokens=3))
    assert outs_of(drain(whole), "b")[0].prompt_logprobs == outs[0].prompt_logprobs


def test_a_failure_of_one_sequences_sampling_is_its_own(monkeypatch, monolithic):
    def broken(*_args):
        raise ZeroDivisionError

    monkeypatch.setattr(sampler_module, "draw", broken)
    engine = tiny_engine()
    good, bad = ask("good", prompt_of(20)), ask("bad", prompt_of(21), temperature=1.0)
    engine.add(bad)
    engine.add(good)
    events = drain(engine)
    failure = only(events, SequenceFailed)
    assert failure.seq_id == "bad"
    assert isinstance(failure.error, EngineDown)
    assert tokens_of(events, "good") == monolithic(good.prompt)
    assert engine.load().free_blocks == 64


def test_an_engine_that_lost_its_gpu_does_not_go_on(monkeypatch):
    engine = tiny_engine()
    engine.add(ask("a", prompt_of(20)))
    monkeypatch.setattr(engine._runner._model, "forward", lambda *_args: 1 // 0)
    monkeypatch.setattr("engine_shim.engine.reference.engine.is_lost", lambda device: device == torch.device("cpu"))
    with pytest.raises(ZeroDivisionError):
        engine.step()


def test_a_failed_batch_fails_those_that_run_and_nobody_else(monkeypatch, monolithic):
    engine = tiny_engine()
    engine.add(ask("parked", prompt_of(33), purpose=Purpose.RECEIVE))
    engine.add(ask("a", prompt_of(20)))
    engine.add(ask("b", prompt_of(21)))
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine._runner._model, "forward", lambda *_args: 1 // 0)
        failures = engine.step()
    assert {(type(event), event.seq_id) for event in failures} == {(SequenceFailed, "a"), (SequenceFailed, "b")}
    assert engine.load().parked_seqs == 1
    assert generate(engine, ask("a", prompt_of(20))) == [monolithic(prompt_of(20))]


def test_abort_in_every_state_gives_everything_back():
    engine = tiny_engine(max_batch_tokens=10, max_num_seqs=1)
    engine.add(ask("running", prompt_of(40)))
    engine.add(ask("waiting", prompt_of(40, seed=2)))
    engine.step()
    for seq_id in ("waiting", "running", "unknown"):
        engine.abort(seq_id)
        engine.unpin(seq_id)
    assert not engine.has_work()
    assert engine.load().free_blocks == 64


def test_what_can_never_run_is_refused_at_once():
    engine = tiny_engine(max_context_tokens=100)
    engine.add(ask("a", prompt_of(5)))
    for error, request in (
        (StaleAttempt, ask("a", prompt_of(5))),
        (BadRequest, ask("b", ())),
        (BadRequest, ask("b", (300,))),
        (BadRequest, ask("b", (1,), logit_bias=((300, 1.0),))),
        (BadRequest, ask("b", (1,), prompt_logprobs=1, purpose=Purpose.RECEIVE)),
        (ContextTooLong, ask("b", prompt_of(100))),
    ):
        with pytest.raises(error):
            engine.add(request)
    with pytest.raises(NoSeats):
        tiny_engine(num_blocks=2, max_context_tokens=100).add(ask("b", prompt_of(40)))
    assert engine.load().waiting_seqs == 1


def test_the_cache_takes_the_bytes_it_is_given():
    block_bytes = tiny_engine().layout.block_bytes
    assert tiny_engine(num_blocks=0, kv_bytes=5 * block_bytes + 1).layout.num_blocks == 5
    with pytest.raises(ModelUnusable):
        tiny_engine(num_blocks=0, kv_bytes=block_bytes - 1)


def test_the_card_says_what_is_served():
    card = tiny_engine(name="served").card
    assert (card.name, card.family, card.vocab_size, card.eos_token_ids) == ("served", "llama", 300, (258, 259))
    assert card.max_context_tokens == 512
