"""What affinity may cost: few keys move, and no instance takes much more than its share however hot one key is."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.intake import BYTES_PER_TOKEN
from router.core.prefix import ENDS, PrefixAffinity
from router.core.ring import Ring, key_of, points_of
from router.core.session import BOUND, SessionAffinity, limit_of
from router.core.weights import weigh_sequences, weigh_tokens
from tests.support.instances import intake, roster

NAMES = [f"d{number}" for number in range(12)]
POINTS = {name: points_of(name) for name in NAMES}
KEYS = [key_of(b"session-%d" % number) for number in range(500)]


@given(st.lists(st.sampled_from(NAMES), min_size=2, unique=True), st.data())
def test_only_the_keys_of_who_leaves_move(names: list[str], drawn: st.DataObject) -> None:
    gone = drawn.draw(st.sampled_from(names))
    left = [name for name in names if name != gone]
    before, after = Ring([POINTS[name] for name in names]), Ring([POINTS[name] for name in left])
    moved = 0
    for key in KEYS:
        owner, heir = names[before.owner(key)], left[after.owner(key)]
        assert heir == owner or owner == gone
        moved += owner == gone
    assert moved < 2.2 * len(KEYS) / len(names)


@given(st.lists(st.integers(0, 7), min_size=1, max_size=150), st.integers(1, 6))
@settings(max_examples=50)
def test_loads_stay_bounded_whatever_the_sessions(sessions: list[int], num: int) -> None:
    policy, members = SessionAffinity(), roster(num)
    for turn, session in enumerate(sessions):
        limit = limit_of(turn, num)
        chosen = policy(members, weigh_sequences, intake(session=b"%d" % session), turn)
        chosen.burden.take(1)
        assert chosen.burden.requests <= limit
    assert sum(member.burden.requests for member in members) == len(sessions)
    assert limit_of(len(sessions), num) <= max(8, BOUND * (len(sessions) + 1) / num + 1)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(100, 3000)), min_size=1, max_size=120),
    st.integers(2, 6),
    st.integers(0, 1000),
)
@settings(max_examples=50)
def test_a_hot_prefix_melts_nobody(prompts: list[tuple[int, int]], num: int, turn: int) -> None:
    """Nobody takes a request while he is further ahead of somebody else than the longest beginning saves."""
    policy, members = PrefixAffinity(), roster(num)
    for number, (which, size) in enumerate(prompts):
        body = b"%d" % which * size
        asked = intake(body=body, prompt=body)
        chosen = policy(members, weigh_tokens, asked, turn + number)
        heaviest = max(weigh_tokens(member) for member in members)
        others = [weigh_tokens(member) for member in members if member is not chosen]
        saved = max((end for end in ENDS if end <= size), default=0) // BYTES_PER_TOKEN
        if weigh_tokens(chosen) == heaviest and heaviest > saved + max(others):
            raise AssertionError(f"the heaviest of all was given more: {heaviest} beside {others}")
        chosen.burden.take(asked.prompt_tokens)


@given(st.integers(1, 20), st.integers(0, 10**6))
@settings(max_examples=8)
def test_one_prompt_again_and_again_is_shared_by_all(num: int, turn: int) -> None:
    policy, members = PrefixAffinity(), roster(4)
    prompt = b"x" * 4096
    counts: Counter[str] = Counter()
    for number in range(40 * num):
        chosen = policy(members, weigh_tokens, intake(prompt=prompt, body=prompt), turn + number)
        chosen.burden.take(1025)
        counts[chosen.instance.instance_id] += 1
    assert max(counts.values()) - min(counts.values()) <= 4
