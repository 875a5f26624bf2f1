from __future__ import annotations

import torch

from engine_shim.engine.reference.batch import Chunk, make_batch


def test_rows_are_flat_and_know_their_places():
    chunks = [Chunk([5, 6, 7], 3, [9, 2], 2), Chunk([8], 0, [4], 0), Chunk([1], 8, [7, 3, 6], 1)]
    batch = make_batch(chunks, 4, torch.device("cpu"))
    assert batch.token_ids.tolist() == [5, 6, 7, 8, 1]
    assert batch.positions.tolist() == [3, 4, 5, 0, 8]
    assert batch.places[0].tolist() == [9, 2, 2, 4, 6]
    assert batch.places[1].tolist() == [3, 0, 1, 0, 0]
    assert batch.wanted is not None
    assert batch.wanted.tolist() == [1, 2, 4]
    assert (chunks[0].num_rows, chunks[0].end_position) == (3, 6)


def test_a_batch_whose_rows_are_all_wanted_needs_no_selection():
    assert make_batch([Chunk([1], 0, [0], 1), Chunk([2], 5, [1, 2], 1)], 4, torch.device("cpu")).wanted is None
