"""A router that renews whenever it can is never taken for dead, and one that has died is, whatever the store does."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from router.core.recovery import Owners

LEASE_S = 10.0
PERIOD_S = LEASE_S / 3
AGAIN_S = LEASE_S / 10
END_S = 200.0
STEP_S = 0.1


Span = tuple[float, float]


@dataclass
class Store:
    """Leases by a clock that only it reads; away during `outages`, and empty after those that lose what it held."""

    outages: list[tuple[float, float, bool]]
    ends: dict[str, float] = field(default_factory=dict)
    lost: set[float] = field(default_factory=set)

    def renew(self, name: str, now: float) -> tuple[dict[str, float], bool] | None:
        """The seconds that each lease has left and whether this one was known, or None while the store is away."""
        for start, end, loses in self.outages:
            if start <= now < end:
                return None
            if loses and now >= end and start not in self.lost:
                self.lost.add(start)
                self.ends.clear()
        known = name in self.ends
        self.ends[name] = now + LEASE_S
        return {owner: ends_at - now for owner, ends_at in self.ends.items()}, known


@dataclass
class Replica:
    """Renews every third of a lease, and sooner after a failure."""

    name: str
    next_at: float
    owners: Owners
    dies_at: float = float("inf")
    leased: bool = False

    def tick(self, store: Store, found: set[str], now: float) -> frozenset[str]:
        """Renew and look when it is time; whom this replica takes for dead then."""
        if now < self.next_at or now >= self.dies_at:
            return frozenset()
        leases = store.renew(self.name, now)
        if leases is None:
            self.owners.lose_sight(now)
            self.next_at = now + AGAIN_S
            return frozenset()
        self.next_at = now + PERIOD_S
        left_s, known = leases
        self.owners.see(left_s, now)
        if self.leased and not known:
            self.owners.lose_sight(now)
        self.leased = True
        self.owners.find(found, now)
        return self.owners.gone(now)


def outages() -> st.SearchStrategy[list[tuple[float, float, bool]]]:
    """Absences of any length, apart from each other, of which some lose everything."""
    one = st.tuples(st.floats(0.5, 40.0), st.floats(0.1, 30.0), st.booleans())

    def laid_out(parts: list[tuple[float, float, bool]]) -> list[tuple[float, float, bool]]:
        at, placed = 0.0, []
        for gap_s, length_s, loses in parts:
            placed.append((at + gap_s, at + gap_s + length_s, loses))
            at += gap_s + length_s
        return placed

    return st.lists(one, max_size=4).map(laid_out)


def run(store: Store, replicas: list[Replica], asleep: Span = (0.0, 0.0)) -> list[tuple[float, str, str]]:
    """All verdicts: when, by whom, about whom. Every replica always has open tickets; all sleep during `asleep`."""
    verdicts, everybody = [], {replica.name for replica in replicas}
    for step in range(round(END_S / STEP_S)):
        now = step * STEP_S
        if asleep[0] <= now < asleep[1]:
            continue
        for replica in replicas:
            verdicts += [(now, replica.name, name) for name in replica.tick(store, everybody, now)]
    return verdicts


starts = st.floats(0.0, PERIOD_S)


@given(outages(), starts, starts, st.tuples(st.floats(0.0, 150.0), st.floats(0.0, 40.0)))
def test_a_router_that_lives_is_never_taken_for_dead(
    away: list[tuple[float, float, bool]], first: float, second: float, nap: Span
) -> None:
    asleep = (nap[0], nap[0] + nap[1])
    replicas = [Replica("a", first, Owners(LEASE_S, first)), Replica("b", second, Owners(LEASE_S, second))]
    assert run(Store(away), replicas, asleep) == []


@given(outages(), starts, starts, st.floats(20.0, 100.0))
def test_a_router_that_has_died_is_found_once_the_store_has_been_there_for_long_enough(
    away: list[tuple[float, float, bool]], first: float, second: float, dies_at: float
) -> None:
    dead = Replica("a", first, Owners(LEASE_S, first), dies_at)
    verdicts = run(Store(away), [dead, Replica("b", second, Owners(LEASE_S, second))])
    assert {name for _, _, name in verdicts} <= {"a"}
    assert all(at >= dies_at for at, _, _ in verdicts)
    last_end = max((end for _, end, _ in away), default=0.0)
    if max(last_end, dies_at) + 3 * LEASE_S < END_S:
        assert verdicts, "nobody has noticed"


@given(starts, starts, st.floats(20.0, 100.0))
def test_with_a_steady_store_a_dead_router_is_found_within_its_lease_and_a_look(
    first: float, second: float, dies_at: float
) -> None:
    dead = Replica("a", first, Owners(LEASE_S, first), dies_at)
    verdicts = run(Store([]), [dead, Replica("b", second, Owners(LEASE_S, second))])
    assert dies_at <= verdicts[0][0] <= dies_at + LEASE_S + PERIOD_S + 2 * STEP_S


class Hasty(Owners):
    """Ablation: believes every ended lease at once, whatever the store has been through."""

    def lose_sight(self, now: float) -> None:
        """Not minded."""


class Forgetful(Owners):
    """Ablation: takes a lease that is not there for one that has ended."""

    def gone(self, now: float) -> frozenset[str]:
        """Whoever is not known to live."""
        return super().gone(now) | frozenset(self._missing_since)


def test_without_a_lease_of_patience_after_an_absence_the_living_are_taken_for_dead() -> None:
    away = [(20.0, 40.0, False)]
    hasty = [Replica("a", 0.0, Hasty(LEASE_S, 0.0)), Replica("b", 1.0, Hasty(LEASE_S, 1.0))]
    assert any(at >= 40.0 for at, _, _ in run(Store(away), hasty))


def test_without_telling_a_lost_lease_from_an_ended_one_the_living_are_taken_for_dead() -> None:
    """Here the store comes back empty so quickly that nobody has seen it away."""
    away = [(20.25, 20.35, True)]
    replicas = [Replica("a", 0.0, Forgetful(LEASE_S, 0.0)), Replica("b", 1.0, Forgetful(LEASE_S, 1.0))]
    assert any(at >= 20.0 for at, _, _ in run(Store(away), replicas))
    careful = [Replica("a", 0.0, Owners(LEASE_S, 0.0)), Replica("b", 1.0, Owners(LEASE_S, 1.0))]
    assert run(Store(away), careful) == []
