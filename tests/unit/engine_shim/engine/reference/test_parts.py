"""A HOLD sequence that is asked for in parts tells of each chunk, and what it tells of stays where it is."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Event

import pytest

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


def test_what_the_prefix_cache_has_is_told_before_the_rest_is_computed():
    engine, told = tiny_engine(max_batch_tokens=64), []
    generate(engine, ask("before", prompt_of(70), max_tokens=1))
    engine.tell_early(lambda part: told.append((part.num_tokens, _layers_there(engine, part), _last_is_there(engine))))
    hold(engine)
    done = next(event for event in drain(engine) if isinstance(event, Prefilled))
    assert told == [(64, engine.layout.num_layers, False)]
    assert done.num_tokens == 100 and _last_is_there(engine)


def _last_is_there(engine):
    """The KV of token 99."""
    return bool(engine._cache.layers[-1][engine._pins._pins["p"].table[6], 3].any())


class Launches:
    """Parts of a device that computes behind the host: what it has launched is there when it is let through."""

    def __init__(self):
        pool = BlockPool(8)
        self.pins, self.told, self.waited_for = Pins(pool), SimpleQueue(), SimpleQueue()
        self.ends = []
        self.parts = Parts(self.pins, self.mark, num_layers=4)
        self.parts.tell_early(self.told.put)
        request = ask("p", prompt_of(40), purpose=Purpose.HOLD, in_parts=True, layers_from_tokens=8, max_tokens=1)
        self.sequence = Sequence(request, 0, names=None, text=None)
        self.sequence.table, self.sequence.state = pool.allocate(3), State.RUNNING

    def mark(self):
        number, end = len(self.ends), Event()
        self.ends.append(end)

        def wait():
            self.waited_for.put(number)
            assert end.wait(10)

        return wait


@pytest.fixture
def launches():
    launches = Launches()
    yield launches
    for end in launches.ends:
        end.set()
    launches.parts.close()


def test_nothing_is_told_before_it_is_in_memory_and_no_step_waits_for_that(launches):
    parts, sequence, table = launches.parts, launches.sequence, tuple(launches.sequence.table)
    sequence.num_computed = 16
    assert parts.after([sequence]) == []
    on_layer = parts.during([(sequence, 24)])
    on_layer(1)
    launches.ends[1].set()
    assert launches.waited_for.get(timeout=10) == 0
    assert launches.told.empty(), "its kernels have not ended, nor have those before the others"
    launches.ends[0].set()
    assert launches.told.get(timeout=10) == Prefilling("p", table, 16)
    assert launches.told.get(timeout=10) == Prefilling("p", table, 40, 1)


def test_blocks_are_pinned_before_the_kernels_that_fill_them_end_and_told_of_even_if_the_sequence_ends(launches):
    launches.sequence.num_computed = 16
    launches.parts.after([launches.sequence])
    assert "p" in launches.pins, "nobody could free what another might be writing"
    launches.sequence.table = []
    launches.ends[0].set()
    assert launches.told.get(timeout=10).seq_id == "p", "the pin is told of, so that somebody ends it"


def test_layers_are_told_of_while_the_last_chunk_is_computed_and_of_no_other():
    engine, told = tiny_engine(max_batch_tokens=64, prefix_cache=False), []
    num_layers = engine.layout.num_layers
    engine.tell_early(lambda part: told.append((part.num_tokens, part.num_layers, _layers_there(engine, part))))
    hold(engine, layers_from_tokens=30)
    events = drain(engine)
    assert told == [(64, 0, num_layers)] + [(100, layers, layers) for layers in range(1, num_layers)]
    assert not any(isinstance(event, Prefilling) for event in events)
    engine.unpin("p")
    told.clear()
    hold(engine, layers_from_tokens=37)
    drain(engine)
    assert [layers for _, layers, _ in told] == [0], "the last chunk has 36 tokens"


def _layers_there(engine, part):
    """Layers whose KV of the last token of the part is in the cache."""
    block, place = part.blocks[(part.num_tokens - 1) // 16], (part.num_tokens - 1) % 16
    return sum(bool(layer[block, place].any()) for layer in engine._cache.layers)
