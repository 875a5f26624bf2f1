from __future__ import annotations

from engine_shim.engine.reference.free_runs import FreeRuns


def test_blocks_come_as_one_run_in_order():
    runs = FreeRuns(10)
    assert runs.take(4) == [0, 1, 2, 3]
    assert runs.runs() == [(4, 6)]
    assert (len(runs), runs.longest) == (6, 6)


def test_the_smallest_run_that_suffices_is_taken():
    runs = _with_runs((0, 5), (10, 3), (20, 8))
    assert runs.take(3) == [10, 11, 12]
    assert runs.take(4) == [0, 1, 2, 3]
    assert runs.runs() == [(4, 1), (20, 8)]


def test_what_no_run_holds_is_taken_from_the_longest_first():
    runs = _with_runs((0, 2), (10, 5), (20, 3))
    assert runs.take(9) == [10, 11, 12, 13, 14, 20, 21, 22, 0]
    assert runs.runs() == [(1, 1)]


def test_right_neighbours_are_preferred():
    runs = _with_runs((0, 1), (7, 6))
    assert runs.take(2, after=6) == [7, 8]
    assert runs.take(1, after=30) == [0]
    assert runs.take(4, after=8) == [9, 10, 11, 12]


def test_returned_neighbours_grow_together():
    runs = FreeRuns(6)
    taken = runs.take(6)
    assert (len(runs), runs.longest, runs.runs()) == (0, 0, [])
    for block in (taken[1], taken[3], taken[2]):
        runs.put(block)
    assert runs.runs() == [(1, 3)]
    runs.put(taken[0])
    runs.put(taken[5])
    assert runs.runs() == [(0, 4), (5, 1)]


def test_an_empty_set_has_no_runs():
    assert FreeRuns(0).runs() == []


def _with_runs(*wanted: tuple[int, int]) -> FreeRuns:
    runs = FreeRuns(50)
    runs.take(50)
    for start, length in wanted:
        for block in range(start, start + length):
            runs.put(block)
    return runs
