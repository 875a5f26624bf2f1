"""Placement: which prefill and which decode instance a request gets, or why it gets none.

Both are chosen before anything is sent, because in push mode decode's leg names prefill's identity. Prefill is chosen
first, by its queue of prompt tokens; decode then among those whose KV cache prefill can write.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.contract.errors import ModelUnknown, NoDecode, NoPair, NoPrefill, TandemError
from router.contract.ids import InstanceId
from router.contract.instance import Mode
from router.core.abilities import able, unable
from router.core.fleet import Fleet, Member, Pool
from router.core.intake import Intake
from router.core.policies import Policy, power_of_two
from router.core.roster import Roster
from router.core.weights import weigh_sequences, weigh_tokens

_APART = 1 << 32
"""Between the turns of prefill and decode: of equals, each prefill instance is to meet each decode instance."""

_LOCAL = Mode.LOCAL  # a member of an Enum is looked up by a Python call, a module's name is not


@dataclass(frozen=True, slots=True)
class Rules:
    """How to place, from the settings."""

    mode: Mode = Mode.PUSH
    local_below_chars: int = 0
    """Bodies shorter than this many bytes are not worth a hand-over; 0 hands every one over."""
    prefill_policy: Policy = power_of_two
    decode_policy: Policy = power_of_two


@dataclass(slots=True)
class Placement:
    """The chosen instances. One is made per request, so it is not frozen (see Intake)."""

    mode: Mode
    prefill: Member | None
    """None in local mode."""
    decode: Member
    reason: str
    """Why this mode: the configured one, or what made the request local."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nobody can take the request."""

    error: TandemError


class Desk:
    """Places requests by fixed Rules; `turn` feeds the policies."""

    __slots__ = ("rules",)

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def choose(self, fleet: Fleet, intake: Intake, turn: int, excluded: frozenset[InstanceId]) -> Placement | Refusal:
        """A Placement on instances outside `excluded`, or the Refusal that names what is missing."""
        pool = fleet.pools.get(intake.model) or _only(fleet, intake)
        if pool is None:
            return Refusal(_unknown(fleet, intake.model))
        mode, reason = self._mode(pool, intake)
        if mode is _LOCAL:
            return self._alone(pool, intake, reason, turn, excluded)
        pairing = pool.pairings.get(mode)
        if pairing is None:
            return Refusal(_missing(pool, mode))
        prefills = _outside(excluded, pairing.prefills)
        if not prefills:
            return Refusal(NoPrefill(f"No other prefill instance serves {pool.model!r}; add one or try again."))
        prefill = prefills[0]
        if len(prefills) > 1:
            prefill = self.rules.prefill_policy(prefills, weigh_tokens, intake, turn)
        decodes = _outside(excluded, pairing.decodes_of[prefill.instance.instance_id])
        if not decodes:
            return Refusal(NoDecode(f"No other decode instance serves {pool.model!r}; add one or try again."))
        decode = decodes[0]
        if len(decodes) > 1:
            decode = self.rules.decode_policy(decodes, weigh_sequences, intake, turn + _APART)
        return Placement(mode, prefill, decode, reason)

    def _mode(self, pool: Pool, intake: Intake) -> tuple[Mode, str]:
        """The mode and its reason: the configured one unless something makes the request local."""
        rules = self.rules
        if rules.mode is _LOCAL:
            return _LOCAL, "configured"
        if intake.whole:
            return _LOCAL, intake.whole
        if len(intake.body) < rules.local_below_chars:
            return _LOCAL, "short"
        if pool.only_both:
            return _LOCAL, "only_both"
        return rules.mode, "configured"

    def _alone(
        self, pool: Pool, intake: Intake, reason: str, turn: int, excluded: frozenset[InstanceId]
    ) -> Placement | Refusal:
        solos = pool.solos
        if intake.whole:
            solos = able(solos, intake.whole)
            if not solos and pool.solos:
                return Refusal(unable(pool.model, intake.whole))
        solos = _outside(excluded, solos)
        if not solos:
            return Refusal(NoDecode(f"No decode instance is free for {pool.model!r}; start one or try again."))
        return Placement(_LOCAL, None, self.rules.decode_policy(solos, weigh_sequences, intake, turn), reason)


def _only(fleet: Fleet, intake: Intake) -> Pool | None:
    """The pool of the one model there is, for a request that need not name it."""
    if intake.model:
        return None
    models = {member.instance.model for member in fleet.members}
    return fleet.pools[models.pop()] if len(models) == 1 else None


def _outside(excluded: frozenset[InstanceId], members: Roster) -> Roster:
    return members.without(excluded) if excluded else members


def _unknown(fleet: Fleet, model: str) -> TandemError:
    if not fleet.pools:
        return NoPrefill(
            "No engine is live; start a prefill and a decode instance, or wait until they have registered."
        )
    names = ", ".join(sorted(fleet.pools))
    return ModelUnknown(f"The model {model!r} does not exist here; the models served are: {names}.", param="model")


def _missing(pool: Pool, mode: Mode) -> TandemError:
    if not pool.has_prefill:
        return NoPrefill(f"No prefill instance is live for {pool.model!r}; start one or try again later.")
    if not pool.has_decode:
        return NoDecode(f"No decode instance is live for {pool.model!r}; start one or try again later.")
    return NoPair(
        f"No prefill and decode instance of {pool.model!r} can exchange KV cache in {mode} mode; "
        "start both with the same model, dtype and mode."
    )
