"""Weights: how much work waits at an instance.

Legs of this replica are known at once, those of other replicas from the heartbeat; the larger of both is the better
guess. Only comparisons between instances count.
"""

from __future__ import annotations

from router.core.fleet import Member

# max() is a call, and these run for every candidate of every request.


def weigh_tokens(member: Member) -> int:
    """Prompt tokens on their way to the instance, or waiting there for their prefill."""
    ours, told = member.burden.tokens, member.load.queued_prompt_tokens
    return ours if ours > told else told


def weigh_sequences(member: Member) -> int:
    """Sequences that run or wait at the instance."""
    load = member.load
    ours, told = member.burden.requests, load.running_seqs + load.waiting_seqs
    return ours if ours > told else told
