import pytest
import torch

from engine_shim.experts.quantise import LEAST_AMAX, pack_rows, unpack_rows
from engine_shim.experts.shape import RowFormat


def test_the_error_of_a_number_is_half_a_step() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 512, generator=generator) * torch.logspace(-20, 20, 64).unsqueeze(1)

    rows = pack_rows(x, RowFormat.FP8)

    step = rows.scales.repeat_interleave(128, dim=1)
    error = (unpack_rows(rows).double() - x.double()).abs()
    assert (error <= (2.0**-4 * x.abs().double() + 2.0**-10 * step) * (1 + 2.0**-20)).all()
    assert rows.numbers.dtype == torch.float8_e4m3fn
    assert rows.scales.shape == (64, 4)
    assert error.max() > 0


def test_the_largest_of_a_block_comes_back_almost_whole() -> None:
    x = torch.zeros(1, 256)
    x[0, 3], x[0, 200] = -3.0, 7e-3
    back = unpack_rows(pack_rows(x, RowFormat.FP8))
    assert torch.allclose(back, x, rtol=2.0**-22, atol=0)


def test_a_block_of_zeros_has_a_scale_that_is_finite() -> None:
    rows = pack_rows(torch.zeros(2, 128), RowFormat.FP8)
    assert torch.equal(rows.scales, torch.full((2, 1), LEAST_AMAX / 448))
    assert unpack_rows(rows).abs().max() == 0


@pytest.mark.parametrize("row_format", list(RowFormat))
def test_bytes_do_not_depend_on_the_other_rows(row_format: RowFormat) -> None:
    x = torch.randn(33, 384, generator=torch.Generator().manual_seed(2)).bfloat16()
    whole = pack_rows(x, row_format)
    one = pack_rows(x[17:18], row_format)
    assert torch.equal(whole.numbers[17:18].view(torch.uint8), one.numbers.view(torch.uint8))
    assert torch.equal(whole.scales[17:18], one.scales)


def test_a_transposed_view_is_read_as_what_it_shows() -> None:
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(3)).t()
    assert torch.equal(pack_rows(x, RowFormat.FP8).scales, pack_rows(x.contiguous(), RowFormat.FP8).scales)


@pytest.mark.parametrize("row_format", [RowFormat.BF16, RowFormat.F32])
def test_bfloat16_passes_unchanged(row_format: RowFormat) -> None:
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(4)).bfloat16()
    assert torch.equal(unpack_rows(pack_rows(x, row_format)), x.float())
