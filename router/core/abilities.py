"""Abilities: what a request that runs whole on one engine asks of it, and who can give it.

A request is whole because of its endpoint, or of an option that one prefill and one decode cannot share; `Intake.whole`
names it. An endpoint is had by those that say so; an option by all that do not say that they lack it.
"""

from __future__ import annotations

from router.contract.errors import BadRequest, RouteUnknown, TandemError
from router.core.fleet import Member
from router.core.roster import Roster

PARAMS = {
    "several_prompts": "prompt",
    "n": "n",
    "best_of": "best_of",
    "beam_search": "use_beam_search",
    "prompt_logprobs": "prompt_logprobs",
    "echo_logprobs": "echo",
}
"""The options, as `Intake.whole` and `Instance.lacks` name them, and the request's field that asks for each."""


def able(members: Roster, whole: str) -> Roster:
    """Those of `members` that can run such a request; the same object when all can."""
    chosen = Roster(member for member in members if _can(member, whole))
    return members if len(chosen) == len(members) else chosen


def unable(model: str, whole: str) -> TandemError:
    """The refusal of a request that no engine of the model can run, before anything is sent."""
    param = PARAMS.get(whole)
    if param is None:
        return RouteUnknown(f"No engine of {model!r} serves {whole}; GET /v1/models lists other models.")
    return BadRequest(f"No engine of {model!r} can do what {param} asks for here; leave it out.", param=param)


def _can(member: Member, whole: str) -> bool:
    instance = member.instance
    return whole not in instance.lacks if whole in PARAMS else whole in instance.endpoints
