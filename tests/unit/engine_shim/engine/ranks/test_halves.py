"""Both halves by one rank; over two, in `conformance/experts/test_nixl.py`."""

import torch

from tests.support.expert_halves import halves_are_the_whole, tiny_mixture


def test_halves_give_the_bits_of_the_whole() -> None:
    torch.set_num_threads(1)
    assert halves_are_the_whole(tiny_mixture("tiny-deepseek", None), rank=0)
