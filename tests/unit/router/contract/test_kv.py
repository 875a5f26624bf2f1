import pytest

from router.contract.kv import KVLayout

# SmolLM2-135M: 30 layers, 3 KV heads of 64, in float16 and blocks of 16 tokens.
SMOLLM2 = KVLayout(num_layers=30, num_kv_heads=3, head_dim=64, block_tokens=16, num_blocks=100, dtype="float16")


def test_the_bytes_of_a_real_model() -> None:
    assert SMOLLM2.slab_token_bytes == 384
    assert SMOLLM2.token_bytes == 23_040
    assert SMOLLM2.block_bytes == 368_640
    assert SMOLLM2.total_bytes == 36_864_000


@pytest.mark.parametrize(("num_tokens", "num_blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_are_counted_up(num_tokens: int, num_blocks: int) -> None:
    assert SMOLLM2.blocks_for(num_tokens) == num_blocks


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="int3"):
        KVLayout(1, 1, 1, 1, 1, "int3")
