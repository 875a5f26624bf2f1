from __future__ import annotations

import torch

from engine_shim.engine.reference.batch import Chunk
from engine_shim.engine.reference.block_mirror import BlockMirror

CPU = torch.device("cpu")


def rows_of(mirror: BlockMirror, *tables: list[int]) -> list[list[int]]:
    slots = mirror.slots_of([Chunk([0], 0, table, 0) for table in tables])
    assert len(set(slots.tolist())) == len(tables)
    return [mirror.tables[slot, : len(table)].tolist() for slot, table in zip(slots.tolist(), tables, strict=True)]


def test_tables_are_there_whole_and_grow():
    mirror = BlockMirror(8, CPU)
    first, second = [5, 3], [7]
    assert rows_of(mirror, first, second) == [[5, 3], [7]]
    first.append(1)
    assert rows_of(mirror, second, first) == [[7], [5, 3, 1]]


def test_only_what_is_new_is_sent():
    mirror = BlockMirror(8, CPU)
    table = [5, 3]
    rows_of(mirror, table)
    mirror.tables.fill_(-1)
    table.append(4)
    assert rows_of(mirror, table) == [[-1, -1, 4]]


def test_slots_go_to_those_that_run_whoever_had_them():
    mirror = BlockMirror(8, CPU)
    mirror.reserve(3)
    kept = mirror.tables
    stays = [1]
    for number in range(20):
        assert rows_of(mirror, [number, number], stays, [number]) == [[number, number], [1], [number]]
    assert mirror.tables is kept


def test_more_rows_than_slots_make_room():
    mirror = BlockMirror(8, CPU)
    tables = [[number] for number in range(5)]
    assert rows_of(mirror, *tables[:2]) == tables[:2]
    assert rows_of(mirror, *tables) == tables
