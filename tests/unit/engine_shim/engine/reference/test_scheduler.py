from __future__ import annotations

from dataclasses import replace

import pytest

from engine_shim.engine.port import Purpose
from engine_shim.engine.reference.block_names import BlockNames
from engine_shim.engine.reference.block_pool import BlockPool
from engine_shim.engine.reference.pins import Pins
from engine_shim.engine.reference.scheduler import Limits, Scheduler
from engine_shim.engine.reference.sequence import Sequence, State
from engine_shim.engine.reference.text_stream import TextStream
from tests.support.tiny_models import ask, prompt_of, tiny_tokenizer


class Desk:
    """A Scheduler of its own, driven by a stand-in for the model."""

    def __init__(self, num_blocks: int = 10, **limits: int) -> None:
        self.limits = Limits(**({"max_num_seqs": 4, "max_batch_tokens": 20, "block_tokens": 4} | limits))
        self.pool = BlockPool(num_blocks)
        self.pins = Pins(self.pool)
        self.scheduler = Scheduler(self.pool, self.pins, self.limits)

    def add(self, seq_id: str, num_tokens: int, purpose: Purpose = Purpose.GENERATE) -> Sequence:
        request = ask(seq_id, prompt_of(num_tokens, seed=sum(seq_id.encode())), purpose=purpose)
        sequence = Sequence(
            request, 0, BlockNames(self.limits.block_tokens), TextStream(tiny_tokenizer(), request.sampling)
        )
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[str, int]:
        """Rows of each sequence; afterwards everybody has computed them and sampled a token where due."""
        batch = self.scheduler.schedule()
        self.seated = {seated.seq_id: seated for seated in batch.seated}
        for sequence, count in batch.rows:
            assert len(sequence.table) * self.limits.block_tokens >= sequence.num_computed + count
            sequence.num_computed += count
            self.scheduler.remember(sequence)
            if not sequence.num_missing:
                sequence.append(7)
        return {sequence.seq_id: count for sequence, count in batch.rows}


def test_long_prompts_are_computed_in_chunks_and_decoding_goes_first():
    desk = Desk(num_blocks=40)
    desk.add("long", 50)
    desk.add("short", 3)
    assert desk.step() == {"long": 20}
    assert desk.step() == {"long": 20}
    assert desk.step() == {"long": 10, "short": 3}
    desk.add("late", 30)
    assert desk.step() == {"long": 1, "short": 1, "late": 18}
    assert desk.step() == {"long": 1, "short": 1, "late": 12}


def test_a_batch_has_no_more_sequences_than_allowed():
    desk = Desk(num_blocks=40, max_num_seqs=2)
    for seq_id in "abc":
        desk.add(seq_id, 2)
    assert desk.step() == {"a": 2, "b": 2}
    assert desk.scheduler.waiting[0].seq_id == "c"


def test_a_prompt_gets_its_blocks_as_one_run():
    desk = Desk(num_blocks=40)
    first, second = desk.add("a", 13), desk.add("b", 7)
    desk.step()
    assert (first.table, second.table) == ([0, 1, 2, 3], [4, 5])


def test_waiting_sequences_are_served_in_order_even_if_a_later_one_would_fit():
    desk = Desk(num_blocks=10)
    desk.add("a", 17)
    desk.step()
    desk.add("big", 30)
    desk.add("small", 1)
    assert desk.step() == {"a": 1}


def test_the_youngest_is_preempted_and_comes_first_again():
    desk = Desk(num_blocks=6, max_batch_tokens=40)
    old, young = desk.add("old", 10), desk.add("young", 8)
    desk.step()
    desk.add("last", 4)
    while not desk.scheduler.num_preemptions:
        desk.step()
    assert (old.state, young.state) == (State.RUNNING, State.WAITING)
    assert (young.table, young.num_computed) == ([], 0)
    assert [sequence.seq_id for sequence in desk.scheduler.waiting] == ["young", "last"]
    desk.scheduler.end(old)
    known = len(desk.pool.cached_prefix(young.names.up_to(young.tokens, 2)))
    assert known > 0
    num_tokens = len(young.tokens)
    assert desk.step()["young"] == num_tokens - 4 * known


def test_seats_need_blocks_but_no_place_in_the_batch():
    desk = Desk(num_blocks=20, max_num_seqs=1)
    desk.add("a", 3)
    receiving = desk.add("d", 9, Purpose.RECEIVE)
    assert desk.step() == {"a": 3}
    assert receiving.state is State.PARKED
    assert desk.seated["d"].seats == tuple(receiving.table)
    assert desk.pool.num_pinned == 3


@pytest.mark.parametrize("num_blocks", [6, 7])
def test_admission_leaves_room_for_each_sequence_that_may_grow(num_blocks):
    desk = Desk(num_blocks=num_blocks)
    desk.add("d", 9, Purpose.RECEIVE)
    desk.step()
    desk.add("e", 9)
    assert ("e" in desk.step()) == (num_blocks == 7)


def test_has_work_is_false_while_only_a_pin_could_make_room():
    desk = Desk(num_blocks=4)
    parked = desk.add("d", 13, Purpose.RECEIVE)
    desk.step()
    desk.add("e", 5)
    assert not desk.scheduler.has_work()
    desk.scheduler.end(parked)
    assert not desk.scheduler.has_work()
    desk.pins.drop("d")
    assert desk.scheduler.has_work()


def test_a_ready_sequence_runs_with_all_but_the_last_prompt_token():
    desk = Desk(num_blocks=20)
    receiving = desk.add("d", 9, Purpose.RECEIVE)
    desk.step()
    desk.pins.drop("d")
    desk.scheduler.ready(receiving)
    assert desk.step() == {"d": 1}
    again = desk.add("e", 9, Purpose.RECEIVE)
    again.tokens[:] = receiving.tokens[:9]
    desk.step()
    assert (desk.seated["e"].first_token, desk.seated["e"].num_tokens) == (8, 8)
    assert again.state is State.RUNNING


def test_what_is_ahead_waits_before_all_others():
    desk = Desk(num_blocks=20)
    desk.add("a", 30)
    desk.add("b", 5)
    request = replace(ask("now", prompt_of(4), purpose=Purpose.RECEIVE), ahead=True)
    desk.scheduler.add(Sequence(request, 0, BlockNames(4), TextStream(tiny_tokenizer(), request.sampling)))
    assert desk.step() == {"a": 20} and set(desk.seated) == {"now"}
    assert [sequence.seq_id for sequence in desk.scheduler.waiting] == ["b"]


def test_what_the_prefix_cache_holds_of_a_prompt_is_told_in_whole_blocks_without_the_last_token():
    desk = Desk(num_blocks=20)
    prompt = tuple(desk.add("a", 9).tokens)
    assert desk.scheduler.num_cached(prompt) == 0
    desk.step()
    desk.step()
    assert [desk.scheduler.num_cached(prompt[:size]) for size in (9, 8, 5, 4, 1)] == [8, 4, 4, 0, 0]
    assert desk.scheduler.num_cached((*prompt[:5], prompt[5] + 1, *prompt[6:])) == 4


def test_prompt_tokens_yet_to_be_computed_are_counted():
    desk = Desk(num_blocks=40)
    desk.add("a", 50)
    desk.add("d", 9, Purpose.RECEIVE)
    assert desk.scheduler.queued_prompt_tokens == 50
    desk.step()
    assert desk.scheduler.queued_prompt_tokens == 30
