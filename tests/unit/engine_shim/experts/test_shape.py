import pytest

from engine_shim.experts.shape import ExpertNumerics, ExpertShape, RowFormat
from router.contract.errors import BadSettings


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts": 20, "num_ranks": 8}, "20 experts cannot be shared evenly by 8 ranks"),
        ({"top_k": 0}, "top_k is 0"),
        ({"hidden_size": 7184}, "no multiple of 128"),
        ({"hidden_size": 16}, "no multiple of 128"),
        ({"hidden_size": 2, "dispatch_format": RowFormat.BF16}, "16 bytes"),
        ({"combine_format": RowFormat.FP8}, "fp8 is not supported"),
    ],
)
def test_a_group_that_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    fitting = {"num_ranks": 4, "num_experts": 16, "top_k": 2, "hidden_size": 128, "max_tokens": 8}
    with pytest.raises(BadSettings, match=words):
        ExpertShape(**(fitting | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("hidden_size", [16, 128, 2048, 2560, 4096, 5120, 7168, 7184])
def test_hidden_sizes_of_real_models(hidden_size: int) -> None:
    shape = ExpertShape(4, 16, 2, hidden_size, 8, dispatch_format=RowFormat.BF16)
    assert shape.dispatch_row_bytes == 2 * hidden_size


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 16, 64, 128, 256])
@pytest.mark.parametrize("max_tokens", [1, 128, 4096, 8192])
def test_rows_of_any_world(num_ranks: int, max_tokens: int) -> None:
    exact = ExpertShape(num_ranks, 256, 8, 7168, max_tokens, expert_align=128)
    dedup = ExpertShape(num_ranks, 256, 8, 7168, max_tokens, expert_align=128, numerics=ExpertNumerics.DEDUP)

    assert exact.dispatch_row_bytes == 7168 + 56 * 4
    assert exact.most_sent_rows == 8 * max_tokens
    assert exact.most_arriving_rows == num_ranks * max_tokens * 8
    assert dedup.most_sent_rows == max_tokens * min(8, num_ranks)
    assert dedup.most_arriving_rows == num_ranks * max_tokens
    padding = min(256 // num_ranks, num_ranks * max_tokens * 8) * 127
    assert exact.capacity_rows == num_ranks * max_tokens * 8 + padding
