"""The policies by the names that settings use."""

from __future__ import annotations

from collections.abc import Callable

from router.core.cost import LeastPrefill, least_step
from router.core.fleet import Member
from router.core.intake import Intake
from router.core.policies import Policy, Weigh, least_loaded, power_of_two, random, round_robin
from router.core.prefix import PrefixAffinity
from router.core.roster import Roster
from router.core.session import SessionAffinity
from router.core.weights import weigh_tokens


def least_tokens(members: Roster, weigh: Weigh, intake: Intake, turn: int) -> Member:
    """The one with the fewest prompt tokens on their way to it, whichever role it plays."""
    return least_loaded(members, weigh_tokens, intake, turn)


_PLAIN: dict[str, Policy] = {
    "power_of_two": power_of_two,
    "least_loaded": least_loaded,
    "least_tokens": least_tokens,
    "round_robin": round_robin,
    "random": random,
}
_AFFINE: dict[str, Callable[[], Policy]] = {"session": SessionAffinity, "prefix": PrefixAffinity}

AFFINE_NAMES = tuple(_AFFINE)
"""Those that know a request from before."""
POLICY_NAMES = (*_PLAIN, *_AFFINE, "cost")


def prefill_policy(name: str) -> Policy:
    """The policy of this name for prefill; one that remembers begins with nothing."""
    return LeastPrefill() if name == "cost" else _policy(name)


def decode_policy(name: str) -> Policy:
    """The policy of this name for decode; one that remembers begins with nothing."""
    return least_step if name == "cost" else _policy(name)


def _policy(name: str) -> Policy:
    return _PLAIN[name] if name in _PLAIN else _AFFINE[name]()
