import torch

from engine_shim.engine.ranks.sharing import in_order, parts_of, share_chunks
from engine_shim.engine.reference.batch import Chunk


def chunk(num_rows: int, num_wanted: int = 1) -> Chunk:
    return Chunk(range(num_rows), 0, [0] * 8, num_wanted)


def test_each_chunk_goes_to_the_part_with_the_fewest_rows() -> None:
    assert share_chunks([chunk(5), chunk(1), chunk(1), chunk(1), chunk(9)], 3) == [0, 1, 2, 1, 2]
    assert share_chunks([], 3) == []


def test_results_come_back_in_the_order_of_the_batch() -> None:
    chunks, owners = [chunk(3, 2), chunk(1), chunk(2, 0), chunk(1)], [0, 1, 1, 0]
    parts = parts_of(chunks, owners, 2)
    assert parts == [(chunks[0], chunks[3]), (chunks[1], chunks[2])]
    hidden = [torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[3.0]])]
    assert in_order(hidden, parts, owners).view(-1).tolist() == [1, 2, 3, 4]


def test_nothing_comes_back_from_nobody() -> None:
    assert in_order([torch.zeros(0, 8), torch.zeros(0, 8)], [(), ()], []).shape == (0, 8)
