"""Cost: the instance that is expected to be quickest.

For prefill that is the least time to its answer, by its own pace and the tokens that wait there; for decode the least
time per output token, by its own pace and the sequences that run there. An instance whose last heartbeat leaves no room
for the prompt's KV cache comes after all that have it, however quick it is: the request would wait for blocks there.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.core.fleet import Member
from router.core.intake import BYTES_PER_TOKEN, Intake
from router.core.policies import Weigh, scramble
from router.core.prefix import PrefixMemory, find_marks
from router.core.roster import Roster
from router.core.weights import weigh_sequences, weigh_tokens

SAMPLE = 8
"""So many candidates are compared, a window that each turn begins elsewhere; all of them if none of it has room."""


def predict_prefill_s(member: Member, tokens: int) -> float:
    """Seconds until prefill's answer to a prompt of `tokens`, if it is sent now."""
    return member.burden.pace.prefill.at(weigh_tokens(member) + tokens)


def predict_step_s(member: Member) -> float:
    """Seconds per output token with one more sequence."""
    return member.burden.pace.step.at(weigh_sequences(member) + 1)


def has_room(member: Member, tokens: int) -> bool:
    """True unless it is known that the KV cache of `tokens` does not fit beside what was sent since the heartbeat."""
    room = member.room_tokens
    return room is None or member.burden.since_heard + tokens <= room


class LeastPrefill:
    """A Policy: whose prefill is expected to answer first.

    What an instance has been sent before need not be computed again (see prefix); the rest of the prompt waits behind
    what waits there already.
    """

    def __init__(self) -> None:
        self.memory = PrefixMemory()

    def __call__(self, members: Roster, weigh: Weigh, intake: Intake, turn: int) -> Member:
        """The quickest; `intake.kept_tokens` says how much of the prompt it is believed to have."""
        tokens, marks = intake.prompt_tokens, find_marks(intake)
        chosen = _quickest(_candidates(members, tokens, turn), tokens)
        intake.kept_tokens = 0
        num_bytes, holders = self.memory.find(marks, members)
        if holders:
            kept = min(num_bytes // BYTES_PER_TOKEN, tokens)
            holder = _quickest(holders, tokens - kept)
            # Equals are no reason to leave: a holder that is as quick computes less.
            if has_room(holder, tokens) and predict_prefill_s(holder, tokens - kept) <= predict_prefill_s(
                chosen, tokens
            ):
                chosen, intake.kept_tokens = holder, kept
        self.memory.remember(marks, chosen.instance.instance_id)
        return chosen


def _quickest(members: Sequence[Member], tokens: int) -> Member:
    return min(members, key=lambda member: member.burden.pace.prefill.at(weigh_tokens(member) + tokens))


def least_step(members: Roster, weigh: Weigh, intake: Intake, turn: int) -> Member:
    """The one that is expected to stream fastest."""
    return min(_candidates(members, intake.prompt_tokens, turn), key=predict_step_s)


def _candidates(members: Roster, tokens: int, turn: int) -> Sequence[Member]:
    """Some that have room for the prompt, the first of them at each turn another one; everybody when nobody has."""
    start, num = scramble(turn) % len(members), len(members)
    window = (*members[start : start + SAMPLE], *members[: max(0, min(start, start + SAMPLE - num))])
    return (
        [member for member in window if has_room(member, tokens)]
        or [member for member in members if has_room(member, tokens)]
        or members
    )
