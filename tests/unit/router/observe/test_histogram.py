import pytest

from router.observe.histogram import TPOT_S, Histogram


def test_a_bucket_includes_its_bound():
    histogram = Histogram((1.0, 2.0))
    for seen in (0.5, 1.0, 1.5, 2.0, 2.5):
        histogram.add(seen)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.total == 7.5


@pytest.mark.parametrize(("one", "other"), [(0.0056, 0.007), (0.007, 0.0104)])
def test_buckets_keep_published_speeds_apart(one, other):
    histogram = Histogram(TPOT_S)
    histogram.add(one)
    histogram.add(other)
    assert max(histogram.counts) == 1
