"""Scheduler: which sequences run next, and with how many tokens.

Every sequence that runs is the same thing to the scheduler, whether it computes its prompt or decodes: it has
`num_missing` tokens to compute. One batch takes them up to a budget of rows:

    1. RUNNING sequences: those that decode first, then those that compute their prompt, each in order of age. A
       decoding sequence may need one more block; when none is left, the youngest running sequence is preempted: its
       blocks are released and it waits again, to be computed anew. Only decoding sequences grow, and a victim is
       never older than the one that grows, so no victim is in the batch already. One whose blocks are pinned is no
       victim: it would free nothing. Such a sequence never grows.
    2. WAITING sequences, first come first served, while seats, rows and blocks last. A sequence takes the blocks of
       all its tokens at once, so that they lie in one run.

A RECEIVE sequence needs no rows when it is seated: it takes blocks, pins them, and is PARKED until its KV has come.
Blocks that are pinned cannot be taken back, so admission leaves one block of room for each sequence that may grow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from engine_shim.engine.port import Seated
from engine_shim.engine.reference.block_names import BlockNames
from engine_shim.engine.reference.block_pool import BlockPool
from engine_shim.engine.reference.pins import Pins
from engine_shim.engine.reference.sequence import Sequence, State


@dataclass(frozen=True, slots=True)
class Limits:
    """What one batch may hold."""

    max_num_seqs: int
    max_batch_tokens: int
    block_tokens: int


@dataclass(slots=True)
class Schedule:
    """One batch: sequences with the number of tokens that each computes, and the seats that were reserved."""

    rows: list[tuple[Sequence, int]] = field(default_factory=list)
    seated: list[Seated] = field(default_factory=list)


class Scheduler:
    """Queues of the live sequences; the only one who takes and gives back blocks for them."""

    def __init__(self, pool: BlockPool, pins: Pins, limits: Limits) -> None:
        self._pool = pool
        self._pins = pins
        self._limits = limits
        self.waiting: deque[Sequence] = deque()
        self.parked: dict[str, Sequence] = {}
        self.running: list[Sequence] = []
        """Oldest first."""
        self.num_preemptions = 0
        self.prefix_hit_tokens = 0
        self.prefix_query_tokens = 0

    @property
    def queued_prompt_tokens(self) -> int:
        """Prompt tokens that are yet to be computed here."""
        computing = [*self.running, *(sequence for sequence in self.waiting if not sequence.is_receiving)]
        return sum(max(sequence.num_prompt_tokens - sequence.num_computed, 0) for sequence in computing)

    def add(self, sequence: Sequence) -> None:
        """`sequence` waits behind all others, or before them if it is to be ahead."""
        if sequence.ahead:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)

    def has_work(self) -> bool:
        """True when `schedule` would seat or run something."""
        return bool(self.running) or bool(self.waiting and self._blocks_at_hand(self.waiting[0]))

    def schedule(self) -> Schedule:
        """The next batch; sequences in it own blocks for all tokens that they compute."""
        batch = Schedule()
        budget = self._limits.max_batch_tokens
        for sequence in sorted(self.running, key=lambda sequence: sequence.num_missing > 1):
            if budget == 0 or len(batch.rows) == self._limits.max_num_seqs:
                break
            count = min(sequence.num_missing, budget)
            if sequence.state is State.RUNNING and self._grow(sequence, count):
                batch.rows.append((sequence, count))
                budget -= count
        self._admit(batch, budget)
        return batch

    def ready(self, sequence: Sequence) -> None:
        """The seats of a PARKED sequence hold its KV: it runs, and its full blocks are known."""
        del self.parked[sequence.seq_id]
        sequence.num_computed = sequence.num_prompt_tokens - 1
        self.remember(sequence)
        self._run(sequence)

    def recompute(self, sequence: Sequence) -> bool:
        """`sequence` waits to compute its prompt itself; False when it has its KV already. A pin stays."""
        if sequence.state is State.PARKED:
            self._requeue(sequence)
            self.waiting.append(sequence)
        elif sequence.state is not State.WAITING or not sequence.is_receiving:
            return False
        sequence.computes_prompt = True
        sequence.num_cached_tokens = None
        return True

    def remember(self, sequence: Sequence) -> None:
        """The prefix cache knows every block that the sequence has filled."""
        num_full = sequence.num_computed // self._limits.block_tokens
        if num_full > sequence.num_remembered_blocks:
            names = sequence.names.up_to(sequence.tokens, num_full)
            for index in range(sequence.num_remembered_blocks, num_full):
                self._pool.remember(sequence.table[index], names[index])
            sequence.num_remembered_blocks = num_full

    def num_cached(self, prompt: tuple[int, ...]) -> int:
        """Tokens of `prompt` that a sequence admitted now would find in the prefix cache."""
        block_tokens = self._limits.block_tokens
        names = BlockNames(block_tokens).up_to(prompt, (len(prompt) - 1) // block_tokens)
        return len(self._pool.cached_prefix(names)) * block_tokens

    def end(self, sequence: Sequence) -> None:
        """`sequence` is in no queue and owns no blocks; a pin, if there is one, still holds them."""
        self._leave(sequence)
        sequence.state = State.ENDED
        self._pool.release(sequence.table)

    def _leave(self, sequence: Sequence) -> None:
        match sequence.state:
            case State.WAITING:
                self.waiting.remove(sequence)
            case State.PARKED:
                del self.parked[sequence.seq_id]
            case State.RUNNING:
                self.running.remove(sequence)
            case State.ENDED:
                pass

    def _run(self, sequence: Sequence) -> None:
        sequence.state = State.RUNNING
        self.running.append(sequence)

    def _grow(self, sequence: Sequence, count: int) -> bool:
        """True when `sequence` owns blocks for `count` more tokens; others, or itself, may have been preempted."""
        needed = self._blocks_for(sequence.num_computed + count) - len(sequence.table)
        while needed > self._pool.num_available:
            victim = next(one for one in reversed(self.running) if one.seq_id not in self._pins)
            self._preempt(victim)
            if victim is sequence:
                return False
        if needed > 0:
            sequence.table += self._pool.allocate(needed, sequence.table[-1] if sequence.table else None)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._requeue(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _requeue(self, sequence: Sequence) -> None:
        """`sequence` owns no blocks and is about to wait."""
        self._leave(sequence)
        self._pool.release(sequence.table)
        sequence.table = []
        sequence.num_computed = 0
        sequence.num_remembered_blocks = 0
        sequence.state = State.WAITING

    def _admit(self, batch: Schedule, budget: int) -> None:
        while self.waiting and self._blocks_at_hand(self.waiting[0]):
            sequence = self.waiting[0]
            has_room = budget > 0 and len(self.running) < self._limits.max_num_seqs
            if not sequence.is_receiving and not has_room:
                return
            self.waiting.popleft()
            if sequence.is_receiving:
                batch.seated.append(self._seat(sequence))
                continue
            self._take_blocks(sequence)
            self._run(sequence)
            count = min(sequence.num_missing, budget)
            batch.rows.append((sequence, count))
            budget -= count

    def _seat(self, sequence: Sequence) -> Seated:
        num_wanted = sequence.num_prompt_tokens - 1
        self._take_blocks(sequence)
        seated = Seated(sequence.seq_id, tuple(sequence.table), sequence.num_computed, num_wanted)
        sequence.num_cached_tokens = num_wanted
        if sequence.num_computed == num_wanted:
            self._run(sequence)
        else:
            sequence.state = State.PARKED
            self.parked[sequence.seq_id] = sequence
            self._pins.put(sequence.seq_id, sequence.purpose, seated.seats)
        return seated

    def _take_blocks(self, sequence: Sequence) -> None:
        """The sequence owns blocks for all its tokens; those found in the prefix cache count as computed."""
        shared = self._cached_blocks(sequence)
        self._pool.share(shared)
        needed = self._blocks_for(len(sequence.tokens)) - len(shared)
        sequence.table = shared + self._pool.allocate(needed, shared[-1] if shared else None)
        sequence.num_computed = len(shared) * self._limits.block_tokens
        if sequence.num_cached_tokens is None:
            self.prefix_query_tokens += sequence.num_prompt_tokens
            self.prefix_hit_tokens += sequence.num_computed
            sequence.num_cached_tokens = sequence.num_computed

    def _cached_blocks(self, sequence: Sequence) -> list[int]:
        """The last token is never taken from the cache: its hidden state is needed to sample the next one."""
        if sequence.wants_prompt_logprobs:
            return []
        num_full = (len(sequence.tokens) - 1) // self._limits.block_tokens
        return self._pool.cached_prefix(sequence.names.up_to(sequence.tokens, num_full))

    def _blocks_at_hand(self, sequence: Sequence) -> bool:
        shared = self._cached_blocks(sequence)
        needed = self._blocks_for(len(sequence.tokens)) - len(shared) + self._pool.num_idle(shared)
        room = len(self.running) + len(self.parked)
        return needed + room <= self._pool.num_available

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._limits.block_tokens)
