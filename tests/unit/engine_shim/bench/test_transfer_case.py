import pytest

from engine_shim.bench.transfer_case import Case, Shape, parse_layouts, scattered
from engine_shim.core.transfer_plan import plan_transfer
from engine_shim.fabric.port import CopyOp
from router.contract.errors import BadSettings
from router.contract.kv import KVOrder

KIB = 1024


def case(run_blocks: int, source: Shape, target: Shape) -> Case:
    return Case(CopyOp.WRITE, "direct", source, target, 64, 64 * KIB, run_blocks)


BLOCK, LAYER = Shape(KVOrder.BLOCK_FIRST), Shape(KVOrder.LAYER_FIRST)


@pytest.mark.parametrize(("run", "spans"), [(0, 1), (16, 4), (4, 16)])
def test_runs_are_what_the_plan_joins(run: int, spans: int) -> None:
    plan = plan_transfer(*case(run, BLOCK, BLOCK).sides(), 0, 64 * 16)
    assert len(plan.spans) == spans
    assert plan.num_bytes == 64 * 64 * KIB


def test_shuffled_blocks_need_a_span_each_and_layers_multiply_them() -> None:
    shuffled = plan_transfer(*case(1, BLOCK, BLOCK).sides(), 0, 64 * 16)
    assert len(shuffled.spans) >= 60
    assert len(plan_transfer(*case(0, LAYER, LAYER).sides(), 0, 64 * 16).spans) == 16


def test_scattered_blocks_are_distinct_and_inside_the_cache() -> None:
    blocks = scattered(100, 3, 200, seed=5)
    assert len(set(blocks)) == 100
    assert set(blocks) <= set(range(200))
    assert blocks != scattered(100, 3, 200, seed=6)


def test_layouts_are_read_and_nonsense_is_refused() -> None:
    assert parse_layouts("block:layer, block/8") == [(BLOCK, LAYER), (Shape(KVOrder.BLOCK_FIRST, 8),) * 2]
    for text in ("rows:block", "block:block/7", ""):
        with pytest.raises(BadSettings):
            parse_layouts(text)
