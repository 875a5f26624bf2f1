import pytest

from engine_shim.experts.port import Phase
from engine_shim.experts.signal import Landings, Signal, decode_signal


def test_a_signal_comes_back_as_it_was() -> None:
    signal = Signal(2**40, Phase.OVERFLOW, part=2, num_parts=3, culprit=65535)
    assert decode_signal(signal.encode()) == signal


@pytest.mark.parametrize("raw", [b"", b"x" * 16, Signal(1, Phase.COUNTS, 1, 1).encode(), b"\0" * 15])
def test_other_bytes_are_no_signal(raw: bytes) -> None:
    assert decode_signal(raw) is None


def test_a_put_in_parts_has_landed_with_its_last_part() -> None:
    landings = Landings()
    landings.land(3, Signal(1, Phase.DISPATCH, 1, 2))
    assert landings.of(1, Phase.DISPATCH) == set()
    landings.land(3, Signal(1, Phase.DISPATCH, 0, 2))
    assert landings.of(1, Phase.DISPATCH) == {3}


def test_sources_are_counted_not_messages() -> None:
    landings = Landings()
    for _ in range(3):
        landings.land(1, Signal(4, Phase.COUNTS))
    assert landings.of(4, Phase.COUNTS) == {1}
    assert landings.num_repeated == 2


def test_what_comes_before_it_is_expected_counts_and_what_comes_after_the_end_does_not() -> None:
    landings = Landings()
    landings.land(0, Signal(2, Phase.COUNTS))
    landings.land(0, Signal(1, Phase.COUNTS))
    landings.end(1)
    landings.land(5, Signal(1, Phase.COUNTS))
    assert landings.of(2, Phase.COUNTS) == {0}
    assert landings.of(1, Phase.COUNTS) == set()
    assert landings.num_stale == 1
