"""Policies against queues: instances that work off prompts one after the other, and requests that do not wait."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.intake import Intake
from router.core.policies import Policy
from router.core.policy_table import prefill_policy
from router.core.roster import Roster
from router.core.weights import weigh_tokens
from tests.support.instances import intake, roster

NUM = 4
Seconds = Callable[[str, Intake], float]
"""What an instance needs for a prompt."""


def serve(policy: Policy, requests: list[tuple[float, Intake]], seconds: Seconds) -> list[float]:
    """Each request's time to its answer, seconds; paces learn as the router's do."""
    members: Roster = roster(NUM)
    free_at = dict.fromkeys(members.ids, 0.0)
    ends: list[tuple[float, int, Callable[[], None]]] = []
    took = []
    for turn, (now, asked) in enumerate(requests):
        while ends and ends[0][0] <= now:
            heapq.heappop(ends)[2]()
        chosen = policy(members, weigh_tokens, asked, turn)
        name, tokens = chosen.instance.instance_id, asked.prompt_tokens
        waited = weigh_tokens(chosen) + tokens - asked.kept_tokens
        free_at[name] = max(free_at[name], now) + seconds(name, asked)
        took.append(free_at[name] - now)
        chosen.burden.take(tokens)

        def end(member=chosen, tokens=tokens, waited=waited, took_s=took[-1]) -> None:
            member.burden.give(tokens)
            member.burden.pace.prefill.add(waited, took_s)

        heapq.heappush(ends, (free_at[name], turn, end))
    return took


@given(st.lists(st.integers(200, 4000), min_size=200, max_size=200), st.sampled_from([0.03, 0.05]))
@settings(max_examples=10, deadline=None)
def test_cost_finds_the_slow_instance(sizes: list[int], every_s: float) -> None:
    """One of four is six times as slow: who only counts tokens waits for it again and again."""

    def seconds(name: str, asked: Intake) -> float:
        return asked.prompt_tokens / (5_000 if name == "d00" else 30_000)

    requests = [(number * every_s, intake(body=b"x" * 4 * size)) for number, size in enumerate(sizes)]
    late = len(requests) // 2
    by_cost = sum(serve(prefill_policy("cost"), requests, seconds)[late:])
    assert by_cost < 0.9 * sum(serve(prefill_policy("power_of_two"), requests, seconds)[late:])
    assert by_cost < 0.9 * sum(serve(prefill_policy("least_tokens"), requests, seconds)[late:])


@pytest.mark.parametrize("name", ["prefix", "cost"])
def test_affinity_computes_less_and_answers_sooner(name: str) -> None:
    """Twenty conversations of growing prompts on four instances that cache what they have computed."""

    def work(policy: Policy) -> tuple[float, float]:
        held: dict[tuple[str, bytes], int] = {}
        computed = 0.0

        def seconds(instance: str, asked: Intake) -> float:
            nonlocal computed
            key = (instance, bytes(asked.prompt)[:2])
            fresh = asked.prompt_tokens - held.get(key, 0)
            held[key] = asked.prompt_tokens
            computed += fresh
            return fresh / 20_000

        took = serve(policy, requests, seconds)
        return computed, sum(took) / len(took)

    requests = []
    for turn in range(10):
        for talk in range(20):
            prompt = b"%02d" % talk * (1000 + 500 * turn)
            requests.append((0.02 * len(requests), intake(body=prompt, prompt=prompt)))
    computed, mean_s = work(prefill_policy(name))
    spread_computed, spread_mean_s = work(prefill_policy("power_of_two"))
    assert computed < 0.5 * spread_computed
    assert mean_s < 0.6 * spread_mean_s
