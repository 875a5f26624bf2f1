"""Sequences that hold their KV for a peer, and sequences that receive it."""

from __future__ import annotations

import ctypes

import pytest
import torch

from engine_shim.core.transfer_plan import Side, plan_transfer
from engine_shim.engine.port import FinishReason, Prefilled, Purpose, Seated, TokensOut
from engine_shim.engine.reference.settings import Numerics
from router.contract.errors import StaleAttempt
from router.contract.kv import KVOrder
from tests.support.tiny_models import (
    TINY_LLAMA,
    TINY_QWEN3,
    address_of,
    ask,
    drain,
    generate,
    hand_over,
    only,
    outs_of,
    prompt_of,
    tiny_engine,
    tokens_of,
)

CONFIGS = pytest.mark.parametrize("config", [TINY_LLAMA, TINY_QWEN3], ids=["llama", "qwen3"])


@pytest.mark.parametrize("sink_order", KVOrder)
@pytest.mark.parametrize("source_order", KVOrder)
def test_tokens_after_a_planned_transfer_equal_the_monolithic_ones(source_order, sink_order, monolithic):
    """The law for every pair of orders, by the plans that a fabric carries out."""
    source = tiny_engine(kv_order=source_order)
    sink = tiny_engine(kv_order=sink_order, block_tokens=16 if source_order is sink_order else 8)
    generate(sink, ask("neighbour", prompt_of(20, seed=9)))
    for length in (16, 33):
        prompt = prompt_of(length, seed=length)
        source.add(ask("p", prompt, purpose=Purpose.HOLD))
        done = only(drain(source), Prefilled)
        sink.add(ask("d", prompt, purpose=Purpose.RECEIVE))
        seats = only(sink.step(), Seated)
        sides = Side(source.layout, done.blocks), Side(sink.layout, seats.seats)
        for span in plan_transfer(*sides, seats.first_token, seats.num_tokens).spans:
            where = sink.region.base + span.dst_offset, source.region.base + span.src_offset
            ctypes.memmove(*where, span.num_bytes)
        source.unpin("p")
        sink.kv_ready("d")
        assert tokens_of(drain(sink), "d") == monolithic(prompt)


@CONFIGS
@pytest.mark.parametrize("order", list(KVOrder))
@pytest.mark.parametrize(("source_block", "sink_block"), [(16, 16), (8, 32), (32, 8)])
def test_tokens_after_a_hand_over_equal_the_monolithic_ones(config, order, source_block, sink_block, monolithic):
    source = tiny_engine(config, block_tokens=source_block, max_batch_tokens=24)
    sink = tiny_engine(config, block_tokens=sink_block, kv_order=order)
    generate(sink, ask("neighbour", prompt_of(20, seed=9)))
    for length in (2, 32, 33, 75):
        prompt = prompt_of(length, seed=length)
        source.add(ask("p", prompt, purpose=Purpose.HOLD))
        done = drain(source)
        expected = monolithic(prompt, config)
        assert tokens_of(done, "p") == expected[:1]
        sink.add(ask("d", prompt, purpose=Purpose.RECEIVE))
        seats = only(sink.step(), Seated)
        hand_over(source, only(done, Prefilled), sink, seats)
        source.unpin("p")
        sink.kv_ready("d")
        assert tokens_of(drain(sink), "d") == expected
    for engine in (source, sink):
        assert engine.load().held_blocks == 0
        assert engine.load().free_blocks == engine.load().total_blocks


def test_a_hold_ends_after_one_token_with_its_blocks_pinned():
    engine = tiny_engine()
    prompt = prompt_of(33)
    engine.add(ask("p", prompt, purpose=Purpose.HOLD, max_tokens=5))
    prefilled, out = drain(engine)
    assert isinstance(prefilled, Prefilled)
    assert isinstance(out, TokensOut)
    assert (len(prefilled.blocks), prefilled.num_tokens, out.finish_reason) == (3, 33, FinishReason.LENGTH)
    assert engine.load().held_blocks == 3
    assert engine.load().quarantined_blocks == 0
    with pytest.raises(StaleAttempt):
        engine.add(ask("p", prompt))
    engine.unpin("p")
    assert engine.load().held_blocks == 0
    assert engine.load().free_blocks == 64


def test_pinned_blocks_are_never_given_to_others():
    engine = tiny_engine(num_blocks=8)
    engine.add(ask("p", prompt_of(60), purpose=Purpose.HOLD))
    held = set(only(drain(engine), Prefilled).blocks)
    before = {block: _block_bytes(engine, block) for block in held}
    for seed in range(6):
        generate(engine, ask("other", prompt_of(40, seed=seed), max_tokens=20))
    assert {block: _block_bytes(engine, block) for block in held} == before


def test_a_parked_sequence_is_no_work_and_its_abort_leaves_the_seats_in_quarantine():
    engine = tiny_engine()
    engine.add(ask("d", prompt_of(33), purpose=Purpose.RECEIVE))
    seats = only(engine.step(), Seated)
    assert (seats.first_token, seats.num_tokens, len(seats.seats)) == (0, 32, 3)
    assert not engine.has_work()
    assert engine.load().parked_seqs == 1
    assert (engine.load().held_blocks, engine.load().quarantined_blocks) == (3, 0)
    engine.abort("d")
    assert (engine.load().held_blocks, engine.load().quarantined_blocks) == (3, 3)
    assert engine.load().free_blocks == 61
    engine.kv_ready("d")
    assert not engine.has_work()
    engine.unpin("d")
    assert engine.load().free_blocks == 64
    assert engine.load().held_blocks == 0


@pytest.mark.parametrize("parked", [True, False], ids=["parked", "queued"])
def test_a_sequence_that_recomputes_gives_equal_tokens_and_leaves_its_seats_pinned(monolithic, parked):
    engine = tiny_engine(block_tokens=8, num_blocks=24)
    prompt = prompt_of(33, seed=4)
    engine.add(ask("d", prompt, purpose=Purpose.RECEIVE))
    seats = only(engine.step(), Seated).seats if parked else ()
    engine.recompute("d")
    assert engine.has_work()
    events = drain(engine)
    assert tokens_of(events, "d") == monolithic(prompt)
    assert next(event for event in events if isinstance(event, TokensOut)).num_cached_tokens == 0
    load = engine.load()
    assert (load.held_blocks, load.quarantined_blocks) == (len(seats), len(seats))
    engine.unpin("d")
    assert engine.load().free_blocks == engine.load().total_blocks


def test_seats_of_a_sequence_that_recomputes_are_given_to_nobody_and_late_kv_is_not_used(monolithic):
    engine = tiny_engine(block_tokens=8, num_blocks=24)
    prompt = prompt_of(33, seed=4)
    engine.add(ask("d", prompt, purpose=Purpose.RECEIVE))
    seats = set(only(engine.step(), Seated).seats)
    engine.recompute("d")
    assert engine.load().quarantined_blocks == len(seats)
    engine.step()
    assert not seats & set(engine._live["d"].table)
    engine.kv_ready("d")
    assert tokens_of(drain(engine), "d") == monolithic(prompt)[1:]


@pytest.mark.parametrize("order", KVOrder)
@pytest.mark.parametrize("numerics", Numerics)
def test_what_former_owners_left_in_a_block_spoils_nobody(order, numerics, monolithic):
    """A WRITE that broke half-way may leave NaN in seats that are then freed."""
    engine = tiny_engine(kv_order=order, numerics=numerics)
    engine._cache.tensor.fill_(torch.nan)
    assert generate(engine, ask("g", prompt_of(21, seed=3))) == [monolithic(prompt_of(21, seed=3))]
    engine._cache.tensor.fill_(torch.nan)
    source = tiny_engine(numerics=numerics)
    source.add(ask("p", prompt_of(21, seed=4), purpose=Purpose.HOLD))
    done = only(drain(source), Prefilled)
    engine.add(ask("d", prompt_of(21, seed=4), purpose=Purpose.RECEIVE))
    hand_over(source, done, engine, only(engine.step(), Seated))
    engine.kv_ready("d")
    assert tokens_of(drain(engine), "d") == monolithic(prompt_of(21, seed=4))


def test_a_sequence_that_has_its_kv_does_not_recompute(monolithic):
    engine = tiny_engine()
    prompt = prompt_of(20, seed=4)
    engine.add(ask("g", prompt))
    first = engine.step()
    engine.recompute("g")
    assert tokens_of(first + drain(engine), "g") == monolithic(prompt)
    engine.recompute("nobody")


def test_received_blocks_enter_the_prefix_cache_only_when_they_are_ready(monolithic):
    prompt = prompt_of(40)
    source, sink = tiny_engine(), tiny_engine()
    source.add(ask("p", prompt, purpose=Purpose.HOLD))
    done = only(drain(source), Prefilled)
    sink.add(ask("first", prompt, purpose=Purpose.RECEIVE))
    first = only(sink.step(), Seated)
    sink.add(ask("second", prompt, purpose=Purpose.RECEIVE))
    assert only(sink.step(), Seated).first_token == 0
    hand_over(source, done, sink, first)
    sink.kv_ready("first")
    sink.add(ask("third", prompt, purpose=Purpose.RECEIVE))
    third = only(sink.step(), Seated)
    assert (third.first_token, third.seats[:2]) == (32, first.seats[:2])
    hand_over(source, done, sink, third)
    sink.kv_ready("third")
    events = drain(sink)
    assert tokens_of(events, "third") == monolithic(prompt)
    assert outs_of(events, "third")[0].num_cached_tokens == 39


def test_a_prompt_that_is_all_cached_runs_at_once_without_a_pin(monolithic):
    engine = tiny_engine()
    prompt = prompt_of(33)
    generate(engine, ask("before", prompt))
    engine.add(ask("d", prompt, purpose=Purpose.RECEIVE))
    events = drain(engine)
    seats = only(events, Seated)
    assert (seats.first_token, seats.num_tokens) == (32, 32)
    assert engine.load().held_blocks == 0
    assert tokens_of(events, "d") == monolithic(prompt)


def test_a_preempted_sequence_that_had_received_is_computed_here(monolithic):
    prompt, other = prompt_of(33), prompt_of(30, seed=5)
    source, sink = tiny_engine(), tiny_engine(num_blocks=8, prefix_cache=False)
    source.add(ask("p", prompt, purpose=Purpose.HOLD))
    done = only(drain(source), Prefilled)
    sink.add(ask("old", other, max_tokens=60))
    sink.step()
    sink.add(ask("d", prompt, purpose=Purpose.RECEIVE, max_tokens=50))
    hand_over(source, done, sink, only(sink.step(), Seated))
    sink.kv_ready("d")
    events = drain(sink)
    assert sink.load().preemptions > 0
    assert tokens_of(events, "d") == monolithic(prompt, max_tokens=50)
    assert tokens_of(events, "old")[-20:] == monolithic(other, max_tokens=60)[-20:]


def _block_bytes(engine, block):
    layout = engine.layout
    begin = address_of(engine, (block,), 0, 0, 0) - engine.region.base
    raw = engine._cache.tensor.view(-1).view(torch.uint8)
    return bytes(raw[begin : begin + layout.block_bytes].tolist())
