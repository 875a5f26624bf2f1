from collections import Counter

from router.core.intake import BYTES_PER_TOKEN
from router.core.prefix import ENDS, GUESS_BYTES, MAX_HOLDERS, PrefixAffinity, PrefixMemory, marks_of
from router.core.weights import weigh_tokens
from tests.support.instances import intake, names, roster

SYSTEM = b'[{"role":"system","content":"' + b"You are kind. " * 300


def pick(policy, members, prompt, turn=0, model="m"):
    return policy(members, weigh_tokens, intake(model, prompt=prompt), turn)


def test_equal_beginnings_have_equal_marks():
    one, other = marks_of("m", SYSTEM + b"A" * 9000), marks_of("m", SYSTEM + b"B" * 100)
    shared = sum(end <= len(SYSTEM) for end in ENDS)
    assert one[:shared] == other[:shared]
    assert len(set(one)) == len(one) > shared > 3
    assert all(mark not in one for mark in other[shared:])


def test_marks_are_few_and_those_of_the_model():
    assert len(marks_of("m", b"x" * 10**6)) == len(ENDS) == 15
    assert marks_of("m", b"x" * 511) == []
    assert set(marks_of("m", SYSTEM)).isdisjoint(marks_of("other", SYSTEM))


def test_a_prompt_goes_where_its_beginning_was():
    policy, members = PrefixAffinity(), roster(8)
    first = pick(policy, members, SYSTEM + b"turn 1")
    for turn in range(1, 30):
        assert pick(policy, members, SYSTEM + b"turn %d" % turn, turn) is first


def test_the_longest_beginning_counts():
    policy, members = PrefixAffinity(), roster(8)
    talk = SYSTEM + b"x" * len(SYSTEM)
    policy.memory.remember(marks_of("m", SYSTEM), "d01")
    policy.memory.remember(marks_of("m", talk), "d02")
    policy.memory.remember(marks_of("m", SYSTEM), "d03")
    assert names([pick(policy, members, talk + b"and on", turn) for turn in range(3)]) == ["d02"] * 3


def test_short_and_unknown_prompts_are_spread():
    policy, members = PrefixAffinity(), roster(4)
    short = Counter(pick(policy, members, b'"hi"', turn).instance.instance_id for turn in range(200))
    fresh = Counter(pick(policy, members, b"%d" % turn + SYSTEM, turn).instance.instance_id for turn in range(200))
    assert min(short.values()) > 20 < min(fresh.values())
    assert len(short) == len(fresh) == 4


def test_a_holder_is_left_when_its_queue_costs_more_than_the_beginning_saves():
    policy, members = PrefixAffinity(), roster(2)
    holder = pick(policy, members, SYSTEM)
    saved = max(end for end in ENDS if end <= len(SYSTEM)) // BYTES_PER_TOKEN
    holder.burden.take(saved)
    assert pick(policy, members, SYSTEM, 1) is holder
    holder.burden.take(1)
    other = pick(policy, members, SYSTEM, 1)
    assert other is not holder
    holder.burden.give(1)
    assert pick(policy, members, SYSTEM, 2) is other, "the lighter of two holders"


def test_a_holder_that_is_gone_is_not_chosen():
    policy, members = PrefixAffinity(), roster(3)
    holder = pick(policy, members, SYSTEM)
    left = members.without(frozenset({holder.instance.instance_id}))
    assert pick(policy, left, SYSTEM, 1) in left


def test_memory_is_bounded_and_forgets_what_was_not_used():
    memory, members = PrefixMemory(200), roster(2)
    hot = [1, 2, 3]
    for number in range(1000):
        memory.remember(hot, "d00")
        memory.remember([10_000 + number], "d01")
        assert len(memory) <= 200 + len(ENDS)
    assert memory.find(hot, members)[1] == [members[0]]
    assert memory.find([10_000], members) == (0, [])
    assert memory.find([10_999], members)[1] == [members[1]]


def test_a_mark_keeps_its_last_holders():
    memory, members = PrefixMemory(), roster(6)
    for name in (*members.ids, "d01"):
        memory.remember([7], name)
    assert names(memory.find([7], members)[1]) == ["d01", "d05", "d04", "d03"]
    assert MAX_HOLDERS == 4


def test_d10_replicas_send_the_same_prompts_to_the_same_instances():
    members, one, other = roster(4), PrefixAffinity(), PrefixAffinity()
    prompts = [b"%d" % number * 4000 for number in range(20)]
    first = [pick(one, members, prompt, turn) for turn, prompt in enumerate(prompts)]
    assert [pick(other, members, prompt, 99 - turn) for turn, prompt in enumerate(prompts)] == first
    longer = [pick(PrefixAffinity(), members, prompt + b"and on" * 999) for prompt in prompts]
    assert longer == first
    assert len(set(first)) == 4


def test_a_guess_that_is_busy_is_no_holder():
    policy, members = PrefixAffinity(), roster(2)
    owner = pick(PrefixAffinity(), members, SYSTEM)
    owner.burden.take(GUESS_BYTES // BYTES_PER_TOKEN + 1)
    assert pick(policy, members, SYSTEM) is not owner
    assert policy.keeper(members, intake(prompt=b"y" + SYSTEM), 0) == (0, None), "nothing is known of it"


def test_a_keeper_is_a_holder_that_is_worth_its_queue():
    policy, members = PrefixAffinity(), roster(2)
    holder = pick(policy, members, b"x" * 2048)
    asked = intake(prompt=b"x" * 3000)
    assert policy.keeper(members, asked, 0) == (512, holder)
    assert policy.keeper(members.without(frozenset(members.ids)), asked, 0) == (0, None)
    holder.burden.take(513)
    assert policy.keeper(members, asked, 0) == (0, None)
