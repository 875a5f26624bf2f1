"""Placement: which prefill and which decode instance a request gets, or why it gets none.

Both are chosen before anything is sent, because in push mode decode's leg names prefill's identity. Prefill is chosen
first, then decode among those that prefill can feed; or the other way round, where decode's policy keeps affinity.
Nothing of prefill's leg names decode, so with a LateChoice decode may be left open until it is needed: then `complete`
chooses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from router.contract.errors import NoDecode, TandemError
from router.contract.ids import InstanceId
from router.contract.instance import Mode
from router.contract.ledger import Outcome
from router.core.abilities import able, unable
from router.core.crossover import Crossover
from router.core.fleet import Fleet, Member, Pool
from router.core.intake import Intake
from router.core.keepers import Keepers
from router.core.late import LateChoice
from router.core.pairs import Pairing
from router.core.policies import Policy, power_of_two
from router.core.prefix import PrefixAffinity
from router.core.record import Record
from router.core.refusals import exhausted, missing, unheld, unknown
from router.core.responses import Responses
from router.core.roster import Roster
from router.core.weights import weigh_sequences, weigh_tokens

_APART = 1 << 32
"""Between the turns of prefill and decode: of equals, each prefill instance is to meet each decode instance."""

CROWDED = 8
"""Sequences from which on a decode instance of another zone may be better, if it has no more than half of them."""

_SPLIT = frozenset({Mode.PUSH, Mode.PULL})
_SERVED = Outcome.SERVED
_LOCAL, _PUSH = Mode.LOCAL, Mode.PUSH  # a member of an Enum is looked up by a Python call, a module's name is not


@dataclass(frozen=True, slots=True)
class Rules:
    """How to place, from the settings."""

    mode: Mode | None = Mode.PUSH
    """None: what suits the prompt's size and the pair."""
    local_below_bytes: int = 0
    """Bodies shorter than this many bytes are not worth a hand-over; 0 hands every one over."""
    prefill_policy: Policy = power_of_two
    decode_policy: Policy = power_of_two
    crossover_tokens: int = 0
    """Without a fixed mode, prompts below are local; 0: learned."""
    decode_first: bool = False
    """Decode is chosen before prefill, because its policy knows requests from before."""
    learns: bool = False
    """A policy, or the late choice, reckons with the pace of instances."""
    late: LateChoice | None = None
    """In push mode decode is chosen shortly before prefill's end; None: with prefill."""
    keepers: Keepers | None = None
    """Prefill is told which decode may keep KV of earlier turns; None: it is not."""


@dataclass(slots=True)
class Placement:
    """The chosen instances. One is made per request, so it is not frozen (see Intake)."""

    mode: Mode
    prefill: Member | None
    """None in local mode."""
    decode: Member | None
    """None as long as it is to be chosen late."""
    reason: str
    """Why this mode: the configured one, or what made the request local."""
    ahead_tokens: int = 0
    """Prompt tokens that waited at prefill, less those of this request that it has; 0 where nobody learns from it."""
    decode_after_s: float = 0.0
    """Without decode: so many seconds after prefill's start it is to be chosen."""
    keeper: Member | None = None
    """A decode instance that may have KV of the prompt's beginning for prefill."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nobody can take the request."""

    error: TandemError


class Desk:
    """Places requests by its Rules; `turn` feeds the policies."""

    __slots__ = ("_completed", "crossover", "responses", "rules")

    def __init__(self, rules: Rules, responses: Responses | None = None) -> None:
        self.rules = rules
        self._completed = 0
        self.responses = responses or Responses()
        self.crossover = Crossover(rules.crossover_tokens)

    def choose(self, fleet: Fleet, intake: Intake, turn: int, excluded: frozenset[InstanceId]) -> Placement | Refusal:
        """A Placement on instances outside `excluded`, or the Refusal that names what is missing."""
        pool = fleet.pools.get(intake.model) or _only(fleet, intake)
        if pool is None:
            return Refusal(unknown(fleet, intake.model))
        mode, reason = self._mode(pool, intake) if intake.allowed is None else self._asked(pool, intake, intake.allowed)
        if mode is _LOCAL:
            return self._alone(pool, intake, reason, turn, excluded)
        if mode is None and (kept := self._kept(pool, intake, turn, excluded)) is not None:
            return kept
        pairing = pool.either if mode is None else pool.pairings.get(mode)
        pair = self._pair(pairing, intake, turn, excluded) if pairing is not None else None
        if pair is None:
            if mode is None and (intake.allowed is None or _LOCAL in intake.allowed):
                return self._alone(pool, intake, "no_pair", turn, excluded)
            return Refusal(missing(pool, mode) if pairing is None else exhausted(pool, pairing, excluded))
        prefill, decode = pair
        if mode is None:
            mode = pool.mode_of(prefill, decode)
        ahead = weigh_tokens(prefill) - intake.kept_tokens if self.rules.learns else 0
        placement = Placement(mode, prefill, decode, reason, ahead)
        if self.rules.keepers is not None:
            able_to_give = _outside(excluded, pool.takers(prefill, mode).everyone)
            placement.keeper = self.rules.keepers.find(intake, prefill, able_to_give)
            self.rules.keepers.remember(intake, decode)
        if self.rules.late is not None and mode is _PUSH:
            self._leave_open(placement, self.rules.late, intake.prompt_tokens)
        return placement

    def _leave_open(self, placement: Placement, late: LateChoice, tokens: int) -> None:
        """Decode is to be chosen again when it is needed, unless that is at once."""
        assert placement.prefill is not None
        expected_s = placement.prefill.burden.pace.prefill.at(placement.ahead_tokens + tokens)
        after_s = late.after_s(expected_s)
        if after_s > 0.0:
            placement.decode, placement.decode_after_s = None, after_s

    def complete(
        self, fleet: Fleet, intake: Intake, placement: Placement, excluded: frozenset[InstanceId]
    ) -> Placement | Refusal:
        """The same placement with a decode instance outside `excluded`, by the fleet as it is now."""
        prefill, pool = placement.prefill, fleet.pools.get(intake.model) or _only(fleet, intake)
        assert prefill is not None
        takers = pool.takers(prefill, placement.mode) if pool is not None else Roster()
        if not (left := _outside(excluded, takers)):
            what = f"No decode instance is free for {intake.model!r} now that its prefill nears its end; try again."
            return Refusal(NoDecode(what))
        self._completed += 1
        decode = self._decode(left, intake, self._completed)
        if self.rules.keepers is not None:
            self.rules.keepers.remember(intake, decode)
        return replace(placement, decode=decode, decode_after_s=0.0)

    def serves(self, pool: Pool) -> bool:
        """True when an ordinary request for this model can be placed by these rules."""
        if self.rules.mode not in _SPLIT:
            return bool(pool.solos)
        return self.rules.mode in pool.pairings or (pool.only_both and bool(pool.solos))

    def serving(self, fleet: Fleet) -> dict[str, Pool]:
        """The models that it `serves`, by name."""
        return {name: pool for name, pool in fleet.pools.items() if self.serves(pool)}

    def why_idle(self, fleet: Fleet) -> str:
        """Why no request can be placed by these rules, a sentence for each model; empty where one can."""
        if self.serving(fleet):
            return ""
        idle = [
            missing(pool, self.rules.mode).message for name, pool in sorted(fleet.pools.items()) if name == pool.owner
        ]
        return " ".join(idle) or unknown(fleet, "").message

    def _pair(
        self, pairing: Pairing, intake: Intake, turn: int, excluded: frozenset[InstanceId]
    ) -> tuple[Member, Member] | None:
        """Prefill and decode; the role that knows the request from before chooses first."""
        if self.rules.decode_first:
            decodes = pairing.decodes_outside(excluded) if excluded else pairing.decodes
            if not decodes:
                return None
            decode = self._decode(decodes, intake, turn)
            feeders = _outside(excluded, pairing.prefills_of[decode.instance.instance_id])
            return self._prefill(feeders, intake, turn), decode
        prefills = pairing.prefills_outside(excluded) if excluded else pairing.prefills
        if not prefills:
            return None
        prefill = self._prefill(prefills, intake, turn)
        fed = _outside(excluded, pairing.decodes_of[prefill.instance.instance_id])
        return prefill, self._decode(fed, intake, turn)

    def _prefill(self, prefills: Roster, intake: Intake, turn: int) -> Member:
        if len(prefills) == 1:
            return prefills[0]
        return self.rules.prefill_policy(prefills, weigh_tokens, intake, turn)

    def _decode(self, decodes: Roster, intake: Intake, turn: int) -> Member:
        decode = decodes[0]
        if len(decodes) > 1:
            decode = self.rules.decode_policy(decodes, weigh_sequences, intake, turn + _APART)
        if decodes.beyond is not None and weigh_sequences(decode) >= CROWDED:
            far = power_of_two(decodes.beyond, weigh_sequences, intake, turn)
            if 2 * weigh_sequences(far) <= weigh_sequences(decode):
                return far
        return decode

    def _kept(self, pool: Pool, intake: Intake, turn: int, excluded: frozenset[InstanceId]) -> Placement | None:
        """Local on a decode instance that keeps so much of the prompt that the rest is short; None if there is none."""
        policy, below = self.rules.decode_policy, self.crossover.tokens
        if not below or not isinstance(policy, PrefixAffinity) or (intake.allowed and _LOCAL not in intake.allowed):
            return None
        kept_tokens, keeper = policy.keeper(_outside(excluded, pool.solos), intake, turn)
        if keeper is None or intake.prompt_tokens - kept_tokens >= below:
            return None
        policy.remember(intake, keeper)
        return Placement(_LOCAL, None, keeper, "cached")

    def _mode(self, pool: Pool, intake: Intake) -> tuple[Mode | None, str]:
        """Mode and reason: the configured one unless something makes the request local. None: what the pair can."""
        rules = self.rules
        if rules.mode is _LOCAL:
            return _LOCAL, "configured"
        if intake.whole:
            return _LOCAL, intake.whole
        if len(intake.body) < rules.local_below_bytes:
            return _LOCAL, "short"
        if pool.only_both:
            return _LOCAL, "only_both"
        return (rules.mode, "configured") if rules.mode is not None else self._suited(pool, intake)

    def _suited(self, pool: Pool, intake: Intake) -> tuple[Mode | None, str]:
        """What suits the prompt's size; where nobody can hand over, decode computes everything."""
        if pool.either is None:
            return _LOCAL, "no_pair"
        local, reason = self.crossover.choose(intake.prompt_tokens, streamed=intake.stream)
        return (_LOCAL if local else None), reason

    def _asked(self, pool: Pool, intake: Intake, allowed: frozenset[Mode]) -> tuple[Mode | None, str]:
        """The usual mode if the client allows it, else the first allowed one of push, pull and local that can be."""
        mode, reason = self._mode(pool, intake)
        if mode in allowed or (mode is None and allowed >= _SPLIT):
            return mode, reason
        can = [one for one in Mode if one in allowed and (one is _LOCAL or one in pool.pairings)]
        return can[0] if can else min(allowed), "asked"

    def _alone(
        self, pool: Pool, intake: Intake, reason: str, turn: int, excluded: frozenset[InstanceId]
    ) -> Placement | Refusal:
        solos = pool.solos
        if intake.whole:
            solos = able(solos, intake.whole)
            if not solos and pool.solos:
                return Refusal(unable(pool.model, intake.whole))
        if intake.previous:
            holding = self.responses.holding(solos, bytes(intake.previous))
            if holding is None:
                return Refusal(unheld(pool))
            solos = holding
        solos = _outside(excluded, solos)
        if not solos:
            return Refusal(NoDecode(f"No decode instance is free for {pool.model!r}; start one or try again."))
        decode = self.rules.decode_policy(solos, weigh_sequences, intake, turn)
        if self.rules.keepers is not None:
            self.rules.keepers.remember(intake, decode)
        return Placement(_LOCAL, None, decode, reason)

    @property
    def learns(self) -> bool:
        """True when `learn` is to be told of what has been served."""
        return self.rules.learns or (self.rules.mode is None and not self.rules.crossover_tokens)

    def learn(self, placement: Placement, tokens: int, record: Record) -> None:
        """A request of `tokens` prompt tokens that was placed so has been served as `record` says."""
        if record.outcome is not _SERVED:
            return
        if record.content_s and record.attempts == 1:
            self.crossover.learn(tokens, record.content_s - record.sent_s, local=placement.mode is _LOCAL)
        prefill, decode = placement.prefill, placement.decode
        if prefill is not None and record.prefilled_s:
            pace, waiting = prefill.burden.pace.prefill, placement.ahead_tokens + tokens
            if self.rules.late is not None:
                self.rules.late.learn(pace.at(waiting), record.prefilled_s - record.sent_s)
            pace.add(waiting, record.prefilled_s - record.sent_s)
        steps = (record.completion_tokens or record.num_events) - 1
        if decode is not None and record.content_s and steps > 0:
            decode.burden.pace.step.add(weigh_sequences(decode) + 1, (record.last_byte_s - record.content_s) / steps)


def _only(fleet: Fleet, intake: Intake) -> Pool | None:
    """The pool of the one model there is, for a request that need not name it."""
    if intake.model:
        return None
    models = {member.instance.model for member in fleet.members}
    return fleet.pools[models.pop()] if len(models) == 1 else None


def _outside(excluded: frozenset[InstanceId], members: Roster) -> Roster:
    return members.without(excluded) if excluded else members
