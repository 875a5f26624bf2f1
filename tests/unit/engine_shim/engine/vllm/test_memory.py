"""vLLM's caches as it lays them out, and some that cannot be moved."""

from dataclasses import dataclass

import pytest

from engine_shim.engine.vllm.memory import CacheShape, describe
from router.contract.errors import ModelUnusable
from router.contract.kv import KVOrder, Region

SHAPE = CacheShape(num_blocks=32, block_tokens=128, num_kv_heads=3, head_dim=64)
PAGE_BYTES = 3 * 128 * 128 * 2
BASE = 0x7000_0000_0040


@dataclass
class Tensor:
    address: int
    shape: tuple[int, ...] = (32, 3, 128, 128)
    strides: tuple[int, ...] = (49152, 16384, 128, 1)
    dtype: str = "torch.bfloat16"
    device: str = "cpu"

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def element_size(self) -> int:
        return {"torch.float32": 4}.get(self.dtype, 2)

    def data_ptr(self) -> int:
        return self.address


def caches(*tensors: Tensor) -> dict[str, Tensor]:
    return {f"layers.{index}": tensor for index, tensor in enumerate(tensors)}


def test_layers_one_after_the_other_are_layer_first_pages() -> None:
    layers = caches(Tensor(BASE), Tensor(BASE + 32 * PAGE_BYTES))
    layout, region, page = describe(layers, SHAPE)
    assert (layout.order, layout.has_pages, layout.num_layers) == (KVOrder.LAYER_FIRST, True, 2)
    assert region == Region(BASE, 2 * 32 * PAGE_BYTES, "cpu", 0)
    assert layout.block_bytes == 2 * PAGE_BYTES
    assert page == "(3, 128, 128) (16384, 128, 1)"


def test_blocks_of_all_layers_together_are_block_first() -> None:
    strides = (2 * 49152, 16384, 128, 1)
    layers = caches(Tensor(BASE, strides=strides), Tensor(BASE + PAGE_BYTES, strides=strides))
    assert describe(layers, SHAPE)[0].order is KVOrder.BLOCK_FIRST


def test_memory_of_a_gpu_is_told_by_its_number() -> None:
    assert describe(caches(Tensor(BASE, device="cuda:3")), SHAPE)[1] == Region(BASE, 32 * PAGE_BYTES, "cuda", 3)


@pytest.mark.parametrize(
    "layers",
    [
        caches(),
        caches(Tensor(BASE), Tensor(BASE + 40 * PAGE_BYTES), Tensor(BASE + 90 * PAGE_BYTES)),
        caches(Tensor(BASE), Tensor(BASE + 32 * PAGE_BYTES, shape=(32, 1, 128, 128))),
        caches(Tensor(BASE, strides=(98304, 32768, 128, 1))),
        caches(Tensor(BASE, shape=(31, 3, 128, 128))),
        caches(Tensor(BASE, dtype="torch.uint8")),
        caches(Tensor(BASE), Tensor(BASE - 32 * PAGE_BYTES)),
    ],
    ids=["none", "apart", "unlike", "gaps", "fewer blocks", "quantised", "backwards"],
)
def test_what_cannot_be_moved_is_refused(layers: dict[str, Tensor]) -> None:
    with pytest.raises(ModelUnusable, match="serve a model"):
        describe(layers, SHAPE)
