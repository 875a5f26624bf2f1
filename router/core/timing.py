"""Timing: which deadline a request runs into next.

    phase         from                                      to                                    passes as
    queue         the request has been read                 it is admitted                        queue_timeout
    prefill       its leg leaves                            prefill's answer                      prefill_timeout
    first_token   prefill's answer (local: leg leaves,      first byte of a streamed answer       first_token_timeout
                  with prefill's time on top)
    answer        the same                                  the end of one that is not streamed   answer_timeout
    next_token    each byte                                 the next one                          next_token_timeout
    stalled       the client takes nothing more             it takes something                    the client is gone
    total         the request has been read                 its answer is complete                deadline_exceeded
    connect       no kept-alive connection is there         there is one                          connect_timeout

Two more are decode's, whose shim is told of them with its leg, and answers 504:

    registration  the decode leg arrives                    its seats are registered              registration_timeout
    kv_wait       its seats are registered                  the KV cache is whole                 kv_wait_timeout

A plain vLLM cannot be told of them, and does not show which of the two it is in: there they bound the first token of
a stream together.

An answer that is not streamed has no first byte before its end, so its time grows with the tokens it may have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from router.contract.errors import Blame, LegTimeout
from router.contract.instance import Mode
from router.contract.wire import NO_WAITS, Waits
from router.core.lifecycle import Client, LegState, Stand


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long each phase may take, seconds. A request may ask for a shorter total, never for a longer one."""

    prefill_s: float = 30.0
    prefill_token_s: float = 0.001
    """Added to prefill_s for each estimated prompt token."""
    first_token_s: float = 40.0
    """The KV cache's way, decode's queue and one step."""
    next_token_s: float = 30.0
    stalled_s: float = 60.0
    total_s: float = 600.0
    queue_s: float = 60.0
    """In the line for admission."""
    connect_s: float = inf
    """Where it is shorter than that of all connections."""
    waits: Waits = NO_WAITS
    """Decode's, where they are shorter than its shim's own."""
    answer_s: float = 60.0
    """Of an answer that is not streamed."""
    answer_token_s: float = 0.1
    """Added to answer_s for each token that may be generated."""

    @property
    def shortest_s(self) -> float:
        """No phase of a fresh attempt runs out sooner."""
        return min(self.prefill_s, self.first_token_s, self.answer_s, self.total_s)

    def allowed_s(self, code: str, tokens: int, max_tokens: int) -> float:
        """How long the phase that passes as `code` may take; inf for what is none.

        Args:
            tokens: of the prompt.
            max_tokens: so many may be generated.
        """
        phases = {
            "connect_timeout": self.connect_s,
            "prefill_timeout": self.prefill_for(tokens),
            "registration_timeout": self.waits.registration_s,
            "kv_wait_timeout": self.waits.kv_s,
            "first_token_timeout": self.first_token_s,
            "next_token_timeout": self.next_token_s,
            "answer_timeout": self.answer_for(max_tokens),
        }
        return phases.get(code, inf)

    def beside(self, *, told: bool) -> Deadlines:
        """These, beside a decode that can be `told` of its waits or has to be watched from here."""
        waits_s = self.waits.registration_s + self.waits.kv_s
        return self if told or waits_s >= self.first_token_s else replace(self, first_token_s=waits_s)

    def hurries(self, code: str, others: Deadlines, tokens: int, max_tokens: int) -> bool:
        """True when these allow less than `others` for the phase that passes as `code`."""
        ours, theirs = self.allowed_s(code, tokens, max_tokens), others.allowed_s(code, tokens, max_tokens)
        return ours < theirs

    def prefill_for(self, tokens: int) -> float:
        """Seconds that the prefill of `tokens` prompt tokens may take."""
        return self.prefill_s + tokens * self.prefill_token_s

    def answer_for(self, max_tokens: int) -> float:
        """Seconds that an answer of at most `max_tokens` tokens may take where it is not streamed."""
        return self.answer_s + max_tokens * self.answer_token_s


@dataclass(frozen=True, slots=True)
class Moments:
    """When the current phases began, monotonic seconds; 0.0 for what has not happened."""

    sent_at: float
    prefilled_at: float
    last_byte_at: float
    streamed: bool
    """The client has asked for a stream."""
    max_tokens: int = 0
    """Of an answer that is not one."""


def next_deadline(stand: Stand, moments: Moments, tokens: int, deadlines: Deadlines) -> tuple[float, LegTimeout | None]:
    """The monotonic second at which the current phase runs out, and the error that this is; (inf, None) without one."""
    if stand.client is Client.STREAMING:
        return moments.last_byte_at + deadlines.next_token_s, _timeout(Blame.DECODE, "next_token")
    if stand.client is not Client.WAITING:
        return inf, None
    if stand.prefill is LegState.SENT:
        return moments.sent_at + deadlines.prefill_for(tokens), _timeout(Blame.PREFILL, "prefill")
    if stand.decode is LegState.SENT:
        since = moments.prefilled_at
        if stand.mode is Mode.LOCAL:
            since = moments.sent_at + deadlines.prefill_for(tokens)
        if moments.streamed:
            return since + deadlines.first_token_s, _timeout(Blame.DECODE, "first_token")
        return since + deadlines.answer_for(moments.max_tokens), _timeout(Blame.DECODE, "answer")
    return inf, None


def _timeout(side: Blame, phase: str) -> LegTimeout:
    what = phase.replace("_", " ")
    return LegTimeout(f"The {side} instance exceeded the {what} deadline; try again.", side=side, phase=phase)
