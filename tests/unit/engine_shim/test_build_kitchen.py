"""What is built by which settings."""

from __future__ import annotations

import pytest

from engine_shim.build_kitchen import push_limits
from engine_shim.settings import ShimSettings
from router.contract.kv import KVLayout, KVOrder

LAYERS_APART = KVLayout(4, 2, 16, 16, 64, "float32", KVOrder.LAYER_FIRST)
SMALL_BLOCKS = KVLayout(4, 2, 16, 16, 64, "float32")


@pytest.mark.parametrize(
    ("layout", "settings", "num_layers"),
    [
        (LAYERS_APART, {}, 4),
        (LAYERS_APART, {"layerwise": False}, 0),
        (LAYERS_APART, {"progressive": False}, 0),
        (SMALL_BLOCKS, {}, 0),
        (SMALL_BLOCKS, {"staging_bytes": 1 << 22}, 4),
    ],
)
def test_pushes_go_by_layers_where_that_is_wanted_and_pays(
    layout: KVLayout, settings: dict[str, int], num_layers: int
) -> None:
    assert push_limits(ShimSettings(**settings), layout).num_layers == num_layers  # type: ignore[arg-type]
