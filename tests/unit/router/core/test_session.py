from collections import Counter

from msgspec import Raw

from router.core.session import AT_LEAST, SessionAffinity, limit_of
from router.core.weights import weigh_sequences
from tests.support.instances import intake, names, roster

MANY = [b"s%d" % number for number in range(400)]


def pick(policy, members, session, turn=0):
    return policy(members, weigh_sequences, intake(session=session), turn)


def test_a_session_stays_where_it_is_whatever_the_turn_and_the_replica():
    members = roster(5)
    one, other = SessionAffinity(), SessionAffinity()
    for session in MANY[:50]:
        first = pick(one, members, session)
        assert all(pick(one, roster(5), session, turn).instance == first.instance for turn in range(5))
        assert pick(other, members, session, 99) is first


def test_sessions_are_spread():
    policy, members = SessionAffinity(), roster(4)
    counts = Counter(pick(policy, members, session).instance.instance_id for session in MANY)
    assert len(counts) == 4
    assert min(counts.values()) > 50


def test_requests_without_a_session_are_spread_by_weight():
    members = roster(2)
    members[0].burden.take(1)
    for unnamed in (b"", Raw(b"null"), Raw(b'""')):
        assert names([pick(SessionAffinity(), members, unnamed, turn) for turn in range(4)]) == ["d01"] * 4


def test_only_the_sessions_of_an_instance_that_has_left_move():
    policy, members = SessionAffinity(), roster(8)
    left = members.without(frozenset({"d03"}))
    moved = 0
    for session in MANY:
        before, after = pick(policy, members, session), pick(policy, left, session)
        if before.instance.instance_id == "d03":
            moved += 1
        else:
            assert before is after
    assert 0 < moved < 2.0 * len(MANY) / 8


def test_a_busy_owner_passes_the_next_request_on_and_gets_its_session_back():
    policy, members = SessionAffinity(), roster(4)
    owner = pick(policy, members, b"hot")
    for _ in range(AT_LEAST):
        assert pick(policy, members, b"hot") is owner
        owner.burden.take(1)
    heir = pick(policy, members, b"hot")
    assert heir is not owner
    owner.burden.give(1)
    assert pick(policy, members, b"hot") is owner


def test_an_owner_below_its_bound_keeps_its_session_though_others_are_lighter():
    policy, members = SessionAffinity(), roster(2)
    owner = pick(policy, members, b"hot")
    for member in members:
        for _ in range(20 if member is owner else 18):
            member.burden.take(1)
    assert pick(policy, members, b"hot") is owner


def test_the_limit_is_a_quarter_above_the_average():
    assert limit_of(0, 3) == AT_LEAST
    assert limit_of(79, 4) == 25
    assert limit_of(80, 4) == 26
