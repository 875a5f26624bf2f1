import pytest

from router.core.ring import MAX_RINGS, POINTS, Ring, Rings, key_of, place_of, points_of
from tests.support.instances import roster


def ring(*names):
    return Ring([points_of(name) for name in names])


def test_an_id_has_its_points_wherever_it_is_asked_for():
    assert points_of("a") == points_of("a") != points_of("b")
    assert len(set(points_of("a"))) == POINTS
    assert all(0 <= point < 2**64 and point & 0xFFFF == 0 for point in points_of("a"))


def test_a_key_belongs_to_the_next_point():
    small = Ring([[1 << 20, 3 << 20], [2 << 20]])
    assert [small.owner(key << 20) for key in (0, 1, 2, 3, 4)] == [0, 0, 1, 0, 0]


def test_heirs_are_everybody_once_and_the_owner_first():
    three = ring("a", "b", "c")
    for number in range(50):
        key = key_of(b"%d" % number)
        heirs = list(three.owners(key))
        assert heirs[0] == three.owner(key)
        assert sorted(heirs) == [0, 1, 2]


@pytest.mark.parametrize("num", [2, 8])
def test_shares_are_about_equal(num):
    whole = ring(*(f"d{number}" for number in range(num)))
    counts = [0] * num
    for number in range(4000):
        counts[whole.owner(key_of(b"session-%d" % number))] += 1
    assert min(counts) > 0.7 * 4000 / num
    assert max(counts) < 1.35 * 4000 / num


def test_a_hash_has_a_place():
    assert place_of(7) == place_of(7) != place_of(8)
    assert 0 <= place_of(2**32 - 1) < 2**64 and place_of(7) & 0xFFFF == 0


def test_rosters_alike_share_a_ring_and_those_of_old_fleets_are_forgotten():
    rings = Rings()
    assert rings.of(roster(3)) is rings.of(roster(3))
    for num in range(1, MAX_RINGS + 3):
        rings.of(roster(num))
    assert len(rings._rings) <= MAX_RINGS
    assert len(rings._points) <= MAX_RINGS + 2
