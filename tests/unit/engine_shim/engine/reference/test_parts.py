"""A HOLD sequence that is asked for in parts tells of each chunk, and what it tells of stays where it is."""

from __future__ import annotations

from engine_shim.engine.port import Prefilled, Prefilling, Purpose, TokensOut
from engine_shim.engine.reference.block_pool import BlockPool
from engine_shim.engine.reference.parts import Parts
from engine_shim.engine.reference.pins import Pins
from engine_shim.engine.reference.sequence import Sequence, State
from tests.support.tiny_models import ask, drain, generate, prompt_of, tiny_engine, tokens_of


def hold(engine, length=100, **more):
    engine.add(ask("p", prompt_of(length), purpose=Purpose.HOLD, in_parts=True, max_tokens=1, **more))


def test_each_chunk_is_told_with_the_blocks_of_the_whole_prompt():
    engine = tiny_engine(max_batch_tokens=32)
    hold(engine)
    events = drain(engine)
    parts, done = [one for one in events if isinstance(one, Prefilling)], events[-2]
    assert [part.num_tokens for part in parts] == [32, 64, 96]
    assert isinstance(done, Prefilled)
    assert {part.blocks for part in parts} == {done.blocks}
    assert engine.load().held_blocks == len(done.blocks) == 7
    engine.unpin("p")
    assert (engine.load().held_blocks, engine.load().free_blocks) == (0, 64)


def test_a_prompt_of_one_chunk_and_one_that_is_not_asked_for_in_parts_tell_of_no_part():
    engine = tiny_engine(max_batch_tokens=32)
    hold(engine, length=32)
    assert [type(event) for event in drain(engine)] == [Prefilled, TokensOut]
    engine.add(ask("q", prompt_of(100), purpose=Purpose.HOLD, max_tokens=1))
    assert [type(event) for event in drain(engine)] == [Prefilled, TokensOut]


def test_blocks_of_a_part_outlive_a_sequence_that_ends_in_the_middle():
    engine = tiny_engine(max_batch_tokens=32, num_blocks=8)
    hold(engine)
    (part,) = engine.step()
    engine.abort("p")
    assert engine.load().held_blocks == 7
    engine.add(ask("other", prompt_of(60, seed=3)))
    assert not engine.has_work(), "there is no room beside the pinned blocks"
    engine.unpin("p")
    assert tokens_of(drain(engine), "other")
    assert isinstance(part, Prefilling)


def test_a_sequence_that_has_told_of_a_part_is_no_victim_of_one_that_grows():
    alone = generate(tiny_engine(), ask("d", prompt_of(30, seed=5), max_tokens=40))[0]
    engine = tiny_engine(max_batch_tokens=16, num_blocks=10, prefix_cache=False)
    engine.add(ask("d", prompt_of(30, seed=5), max_tokens=40))
    events = engine.step() + engine.step()
    hold(engine, length=112)
    blocks = set()
    while engine.has_work():
        step = engine.step()
        events += step
        blocks |= {event.blocks for event in step if isinstance(event, Prefilling | Prefilled)}
    assert engine.load().preemptions > 0, "the one that grows has to wait"
    assert len(blocks) == 1
    engine.unpin("p")
    events += drain(engine)
    assert tokens_of(events, "d") == alone


def test_nothing_is_told_before_it_is_in_memory():
    pool = BlockPool(8)
    pins, request = Pins(pool), ask("p", prompt_of(40), purpose=Purpose.HOLD, in_parts=True, max_tokens=1)
    sequence = Sequence(request, 0, names=None, text=None)
    sequence.table, sequence.state = pool.allocate(3), State.RUNNING
    parts, there = Parts(pins), []
    sequence.num_computed = 16
    assert parts.on_step([sequence], lambda: lambda: bool(there)) == []
    assert "p" not in pins
    sequence.num_computed = 32
    there.append(True)
    told = parts.on_step([sequence], lambda: lambda: False)
    assert [part.num_tokens for part in told] == [16]
    assert "p" in pins


def test_parts_of_a_sequence_that_was_preempted_meanwhile_are_not_told():
    pool = BlockPool(8)
    sequence = Sequence(
        ask("p", prompt_of(40), purpose=Purpose.HOLD, in_parts=True, max_tokens=1), 0, names=None, text=None
    )
    sequence.table, sequence.state, sequence.num_computed = pool.allocate(3), State.RUNNING, 16
    parts, there = Parts(Pins(pool)), []
    parts.on_step([sequence], lambda: lambda: bool(there))
    sequence.table = pool.allocate(3)
    there.append(True)
    assert parts.on_step([], lambda: lambda: True) == []
