"""Weights: how much work waits at an instance.

Legs of this replica are known at once, those of other replicas from the heartbeat; the larger of both is the better
guess. Only comparisons between instances count.
"""

from __future__ import annotations

from router.core.fleet import Member


def weigh_tokens(member: Member) -> int:
    """Prompt tokens on their way to the instance, or waiting there for their prefill."""
    return max(member.burden.tokens, member.load.queued_prompt_tokens)


def weigh_sequences(member: Member) -> int:
    """Sequences that run or wait at the instance."""
    return max(member.burden.requests, member.load.running_seqs + member.load.waiting_seqs)
