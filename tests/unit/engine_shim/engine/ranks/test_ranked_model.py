from collections.abc import Sequence

import torch

from engine_shim.engine.port import ExpertRankLoad
from engine_shim.engine.ranks.messages import Compute, Computed
from engine_shim.engine.ranks.ranked_model import RankedModel
from engine_shim.engine.reference.batch import Chunk, make_batch


def chunk(first_token: int, num_rows: int, num_wanted: int = 1) -> Chunk:
    return Chunk(range(first_token, first_token + num_rows), 0, [0] * 8, num_wanted)


class TellingRanks:
    """A rank's hidden state of a row is the row's token."""

    num_ranks = 3

    def compute(self, parts: Sequence[Compute]) -> list[Computed]:
        self.parts = parts
        computed = []
        for rank, part in enumerate(parts):
            wanted = [float(token) for one in part.chunks for token in one.token_ids[one.num_rows - one.num_wanted :]]
            computed.append(Computed(torch.tensor(wanted).view(-1, 1).numpy(), ExpertRankLoad(num_steps=rank)))
        return computed


def test_rows_come_back_in_the_order_of_the_batch() -> None:
    ranks = TellingRanks()
    model = RankedModel(ranks, lambda x: x, torch.float32)  # type: ignore[arg-type]
    chunks = [chunk(10, 3, 2), chunk(20, 1), chunk(30, 2, 0), chunk(40, 4, 4)]
    hidden = model.forward(make_batch(chunks, 16, torch.device("cpu")), None)  # type: ignore[arg-type]
    assert hidden.view(-1).tolist() == [11, 12, 20, 40, 41, 42, 43]
    assert [one.num_steps for one in model.loads] == [0, 1, 2]


def test_every_rank_takes_part_in_a_small_batch() -> None:
    ranks = TellingRanks()
    model = RankedModel(ranks, lambda x: x, torch.float32)  # type: ignore[arg-type]
    model.forward(make_batch([chunk(1, 1)], 16, torch.device("cpu")), None)  # type: ignore[arg-type]
    assert [len(part.chunks) for part in ranks.parts] == [1, 0, 0]
