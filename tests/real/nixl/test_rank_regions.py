"""Plans between tensor-parallel ranks, carried out by NIXL: a Region for each rank, WRITEs between two processes."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import pytest

from engine_shim.core.transfer_plan import Side, plan_transfer
from router.contract.kv import KVLayout, KVOrder
from tests.support.kv_oracle import Model, ranks_of, writers_of
from tests.support.nixl_process import NixlProcess

SIZE = 1 << 20
NUM_TOKENS = 37
FIRST_TOKEN = 8
BLOCK, LAYER, HEAD = KVOrder.BLOCK_FIRST, KVOrder.LAYER_FIRST, KVOrder.HEAD_MAJOR

CASES = {
    "tp4_to_tp2_head_major": (8, "float16", (4, HEAD, 8), (2, HEAD, 8)),
    "tp1_to_tp4_token_major": (8, "bfloat16", (1, BLOCK, 16), (4, LAYER, 8)),
    "tp2_to_tp8_replicated_heads": (2, "float16", (2, HEAD, 4), (8, LAYER, 8)),
    "tp8_replicated_to_tp1": (4, "float16", (8, BLOCK, 8), (1, HEAD, 4)),
    "fp8": (4, "float8_e4m3", (2, LAYER, 8), (4, HEAD, 16)),
    "latent": (1, "bfloat16", (2, BLOCK, 8), (4, LAYER, 16)),
}


@pytest.fixture(scope="module")
def couple() -> Iterator[tuple[NixlProcess, NixlProcess]]:
    p, d = NixlProcess("ranks-p@1", SIZE), NixlProcess("ranks-d@1", SIZE)
    p.meet(d)
    d.meet(p)
    yield p, d
    p.kill()
    d.kill()


def engine(case: str, at: int, seed: int) -> list[Side]:
    all_heads, dtype, *sides = CASES[case]
    tp_size, order, block_tokens = sides[at]
    needed = -(-NUM_TOKENS // block_tokens)
    shape = KVLayout(2, all_heads, 8, block_tokens, needed + 3, dtype, order, latent=case == "latent")
    blocks = tuple(np.random.default_rng(seed).permutation(needed + 3)[:needed].tolist())
    return [Side(rank, blocks) for rank in ranks_of(shape, all_heads, tp_size)]


def starts_of(sides: list[Side]) -> list[int]:
    """Where each rank's Region begins in its process's memory."""
    starts = [0, *accumulate(side.layout.total_bytes for side in sides)]
    assert starts[-1] <= SIZE
    return starts


@pytest.mark.parametrize("case", CASES)
def test_ranks_of_decode_hold_what_ranks_of_prefill_wrote(case: str, couple: tuple[NixlProcess, NixlProcess]) -> None:
    p, d = couple
    sources, targets = engine(case, 0, 1), engine(case, 1, 2)
    model = Model(sources[0].layout, sources[0].layout.all_kv_heads, NUM_TOKENS)
    held = np.concatenate([model.memory(side, holds=True) for side in sources])
    before = np.concatenate([model.memory(side, holds=False) for side in targets])
    p.ask("load", content=b64encode(held.tobytes()).decode())
    d.ask("load", content=b64encode(before.tobytes()).decode())
    tags = [f"{case}:{rank}>{dst.layout.tp_rank}" for dst in targets for rank in write_all(p, d, sources, targets, dst)]
    wanted = [
        f"{case}:{rank}>{dst.layout.tp_rank}" for dst in targets for rank in writers_of(dst.layout, sources[0].layout)
    ]
    assert sorted(tags) == sorted(wanted)
    raw = d.ask("save", count=len(before))["content"]
    seen = np.frombuffer(b64decode(raw), dtype=np.uint8)
    expected = before.copy()
    for start, dst in zip(starts_of(targets), targets, strict=False):
        for (slab, token, head), at in model.places(dst):
            if token >= FIRST_TOKEN:
                expected[start + at : start + at + model.width] = model.values[slab, token, head]
    loose = loose_bytes(targets, len(seen))
    assert (seen[~loose] == expected[~loose]).all()


def write_all(p: NixlProcess, d: NixlProcess, sources: list[Side], targets: list[Side], dst: Side) -> list[int]:
    """The WRITEs of all ranks of prefill to this rank of decode; who had something to write."""
    there, writers = starts_of(targets)[dst.layout.tp_rank], []
    for start, src in zip(starts_of(sources), sources, strict=False):
        plan = plan_transfer(src, dst, FIRST_TOKEN, NUM_TOKENS)
        if not plan.spans:
            continue
        answer = p.ask(
            "copy", op="WRITE", peer=d.name, base=d.base + there, size=dst.layout.total_bytes,
            spans=plan.rows.tolist(), local=(start, src.layout.total_bytes), tag="landed",
        )  # fmt: skip
        assert answer["state"] == "done", answer
        writers.append(src.layout.tp_rank)
    return writers


def loose_bytes(targets: list[Side], num_bytes: int) -> np.ndarray:
    """Bytes of the last block's unused tail, which a plan of whole blocks may write."""
    loose = np.zeros(num_bytes, dtype=bool)
    for start, dst in zip(starts_of(targets), targets, strict=False):
        tail = -NUM_TOKENS % dst.layout.block_tokens
        whole = Model(dst.layout, dst.layout.all_kv_heads, NUM_TOKENS + tail)
        for (_, token, _), at in whole.places(dst):
            if token >= NUM_TOKENS:
                loose[start + at : start + at + whole.width] = True
    return loose
