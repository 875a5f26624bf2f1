"""Which tensor-parallel rank of prefill sends which KV heads to which rank of decode.

Both sides cut the model's KV heads into equal shares, each its own number of them. A head that several ranks of prefill
hold (more ranks than heads, or a latent cache) comes from exactly one of them, another one for each rank of decode in
turn, so that the load is shared and no byte is written twice.

    heads       0 1 2 3          prefill tp 2: ranks hold 01, 23      decode tp 4: 0, 1, 2, 3
    moves       rank 0 -> ranks 0, 1; rank 1 -> ranks 2, 3
"""

from __future__ import annotations

from dataclasses import dataclass

from router.contract.kv import KVLayout


@dataclass(frozen=True, slots=True)
class HeadMove:
    """Neighbouring heads that one rank sends to another; heads counted from each rank's own first."""

    source_rank: int
    source_head: int
    target_head: int
    num_heads: int


def moves_to(target: KVLayout, source: KVLayout) -> tuple[HeadMove, ...]:
    """Every move to the rank that `target` describes, by source rank; together they bring each of its heads once.

    `source` is the layout of any rank of prefill.
    """
    if target.latent:
        return (HeadMove(target.tp_rank % source.tp_size, 0, 0, 1),)
    moves: list[HeadMove] = []
    for place in range(target.num_kv_heads):
        head = target.first_head + place
        rank, within = _owner(head, source, target.tp_rank)
        last = moves[-1] if moves else None
        if last is not None and last.source_rank == rank:
            moves[-1] = HeadMove(rank, last.source_head, last.target_head, last.num_heads + 1)
        else:
            moves.append(HeadMove(rank, within, place, 1))
    return tuple(moves)


def move_between(source: KVLayout, target: KVLayout) -> HeadMove | None:
    """What the rank that `source` describes sends to the rank that `target` describes; None: nothing."""
    return next((move for move in moves_to(target, source) if move.source_rank == source.tp_rank), None)


def _owner(head: int, source: KVLayout, target_rank: int) -> tuple[int, int]:
    """(rank of prefill, place of the head there)."""
    if source.tp_size <= source.all_kv_heads:
        return divmod(head, source.num_kv_heads)
    copies = source.tp_size // source.all_kv_heads
    return head * copies + target_rank % copies, 0
