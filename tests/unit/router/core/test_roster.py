from tests.support.instances import names, roster


def test_members_are_found_by_their_ids():
    members = roster(3)
    assert members.ids == ("d00", "d01", "d02")
    assert members.by_id["d01"] is members[1]


def test_the_excluded_are_left_out():
    assert names(roster(3).without(frozenset({"d01"}))) == ["d00", "d02"]
    assert not roster(1).without(frozenset({"d00"}))


def test_the_far_are_taken_when_nobody_near_is_left():
    near, everyone = roster(2), roster(4)
    assert near.everyone is near
    near.beyond = everyone
    assert near.everyone is everyone
    assert names(near.without(frozenset({"d00"}))) == ["d01"]
    assert names(near.without(frozenset({"d00", "d01"}))) == ["d02", "d03"]
