from collections import Counter

import pytest

from router.core.policy_table import POLICY_NAMES, decode_policy, least_tokens, prefill_policy
from router.core.weights import weigh_sequences
from tests.support.instances import intake, roster

BUILDERS = [prefill_policy, decode_policy]


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_choice_is_a_function_of_what_was_chosen_before(build, name):
    members, one, other = roster(5), build(name), build(name)
    asked = intake(prompt=b"x" * 999, session=b"s")
    choices = [one(members, weigh_sequences, asked, turn) for turn in range(20)]
    assert choices == [other(members, weigh_sequences, asked, turn) for turn in range(20)]
    assert set(choices) <= set(members)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("name", POLICY_NAMES)
def test_requests_that_have_nothing_in_common_are_spread(build, name):
    members, policy = roster(4), build(name)
    counts = Counter(policy(members, weigh_sequences, intake(), turn).instance.instance_id for turn in range(2000))
    assert len(counts) == 4
    assert min(counts.values()) > 350


@pytest.mark.parametrize("name", ["session", "prefix"])
def test_roles_do_not_share_what_they_remember(name):
    assert prefill_policy(name) is not decode_policy(name)


def test_least_tokens_weighs_tokens_for_every_role():
    members = roster(2)
    members[0].burden.take(100)
    for _ in range(3):
        members[1].burden.take(1)
    assert least_tokens(members, weigh_sequences, intake(), 0) is members[1]
