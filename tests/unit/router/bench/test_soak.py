import pytest

from router.bench.soak import slope_of


def test_the_slope_is_that_of_the_line_that_fits_best():
    assert slope_of([5.0, 5.0, 5.0]) == 0.0
    assert slope_of([1.0, 3.0, 5.0, 7.0]) == pytest.approx(2.0)
    assert slope_of([0.0, 1.0, 0.0, 1.0, 0.0]) == pytest.approx(0.0)
