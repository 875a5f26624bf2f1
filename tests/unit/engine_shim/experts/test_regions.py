import pytest

from engine_shim.experts.regions import plan_regions
from engine_shim.experts.shape import ExpertNumerics, ExpertShape
from router.contract.errors import BadSettings


@pytest.mark.parametrize("numerics", list(ExpertNumerics))
@pytest.mark.parametrize("flights", [1, 2, 3])
def test_sections_tile_the_memory(numerics: ExpertNumerics, flights: int) -> None:
    regions = plan_regions(ExpertShape(4, 8, 3, 128, 5, numerics=numerics), flights=flights)
    for epoch in range(flights):
        begins = [regions.inbox_counts(epoch, source) for source in range(4)]
        begins += [regions.inbox_private(epoch, source) for source in range(4)]
        begins += [regions.inbox_overflow(epoch), regions.inbox_combine(epoch)]
        ends = [*begins[1:], regions.inbox_counts(epoch + 1, 0) or regions.inbox_bytes]
        if epoch == flights - 1:
            ends[-1] = regions.inbox_bytes
        sizes = [regions.counts_bytes] * 4 + [regions.private_rows * regions.dispatch_bytes] * 4
        sizes += [regions.overflow_rows * regions.dispatch_bytes, regions.shape.most_sent_rows * 256]
        for begin, end, size in zip(begins, ends, sizes, strict=True):
            assert size <= end - begin < size + 128
    assert regions.total_bytes == regions.inbox_bytes + regions.outbox_bytes
    assert regions.outbox_dispatch(0) == regions.counts_bytes


def test_private_and_overflow_hold_the_worst_case() -> None:
    regions = plan_regions(ExpertShape(4, 8, 2, 128, 100))
    assert regions.private_rows == 61, "1.2 times 100 * 2 / 4, and one"
    assert regions.overflow_rows == 4 * (200 - 61)
    dedup = plan_regions(ExpertShape(4, 8, 2, 128, 100, numerics=ExpertNumerics.DEDUP))
    assert (dedup.private_rows, dedup.overflow_rows) == (100, 0)


def test_a_refusal_says_how_many_bytes_are_wanted() -> None:
    shape = ExpertShape(8, 256, 8, 7168, 4096)
    wanted = plan_regions(shape).total_bytes
    with pytest.raises(BadSettings, match=f"need {wanted} bytes"):
        plan_regions(shape, most_bytes=wanted - 1)
    assert plan_regions(shape, most_bytes=wanted).total_bytes == wanted


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 16, 64, 128, 256])
@pytest.mark.parametrize("max_tokens", [1, 128, 4096, 8192])
@pytest.mark.parametrize("numerics", list(ExpertNumerics))
def test_every_documented_world_is_planned(num_ranks: int, max_tokens: int, numerics: ExpertNumerics) -> None:
    regions = plan_regions(ExpertShape(num_ranks, 256, 8, 7168, max_tokens, numerics=numerics))
    rows = num_ranks * max_tokens * (8 if numerics is ExpertNumerics.EXACT else 1)
    assert regions.inbox_bytes >= 2 * rows * regions.dispatch_bytes


def test_no_flights_are_refused() -> None:
    with pytest.raises(BadSettings, match="flights"):
        plan_regions(ExpertShape(2, 4, 1, 128, 1), flights=0)
