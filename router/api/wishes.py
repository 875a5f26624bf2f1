"""Wishes: what a client may ask for by headers about how its request is carried out. It can only ask for less.

X-Request-Timeout-Ms, X-Request-Deadline-Ms   the whole request
X-Queue-Timeout-Ms                            its wait for admission
X-Connect-Timeout-Ms                          a new connection to an engine
X-Prefill-Timeout-Ms                          prefill
X-Registration-Timeout-Ms                     decode's wait for seats, where its shim knows such a wait
X-KV-Wait-Timeout-Ms                          from there until the KV cache is whole, likewise
X-First-Token-Timeout-Ms                      from prefill's answer to the first token of a stream
X-Next-Token-Timeout-Ms                       between two tokens
X-Answer-Timeout-Ms                           from prefill's answer to the end of an answer that is not streamed
X-Priority                                    its place in the line, where the router listens to that
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import msgspec
from msgspec import Raw

from router.contract.errors import BadRequest
from router.contract.wire import Waits
from router.core.intake import Intake
from router.core.timing import Deadlines

TOTAL_HEADERS = (b"x-request-deadline-ms", b"x-request-timeout-ms")
_QUEUE, _PREFILL = b"x-queue-timeout-ms", b"x-prefill-timeout-ms"
_FIRST_TOKEN, _NEXT_TOKEN = b"x-first-token-timeout-ms", b"x-next-token-timeout-ms"
_ANSWER = b"x-answer-timeout-ms"
_CONNECT, _REGISTRATION, _KV_WAIT = b"x-connect-timeout-ms", b"x-registration-timeout-ms", b"x-kv-wait-timeout-ms"
PHASE_HEADERS = frozenset({_QUEUE, _CONNECT, _PREFILL, _REGISTRATION, _KV_WAIT, _FIRST_TOKEN, _NEXT_TOKEN, _ANSWER})

PRIORITY_HEADER = b"x-priority"
_PRIORITY = re.compile(rb"-?\d{1,6}")


def total_s(headers: Mapping[bytes, bytes], configured_s: float) -> float:
    """Seconds for the whole request. Raises BadRequest for what is no number of milliseconds."""
    return min([configured_s, *(_seconds(name, headers[name]) for name in TOTAL_HEADERS if name in headers)])


def shortened(headers: Mapping[bytes, bytes], configured: Deadlines, intake: Intake) -> Deadlines:
    """The configured deadlines, less what the client asks for this request. Raises BadRequest."""

    def least(name: bytes, configured_s: float) -> float:
        value = headers.get(name)
        return configured_s if value is None else min(configured_s, _seconds(name, value))

    return replace(
        configured,
        queue_s=least(_QUEUE, configured.queue_s),
        prefill_s=least(_PREFILL, configured.prefill_for(intake.prompt_tokens)),
        prefill_token_s=0.0,
        first_token_s=least(_FIRST_TOKEN, configured.first_token_s),
        next_token_s=least(_NEXT_TOKEN, configured.next_token_s),
        answer_s=least(_ANSWER, configured.answer_for(intake.max_tokens)),
        answer_token_s=0.0,
        connect_s=least(_CONNECT, configured.connect_s),
        waits=Waits(least(_REGISTRATION, configured.waits.registration_s), least(_KV_WAIT, configured.waits.kv_s)),
    )


def _seconds(name: bytes, value: bytes) -> float:
    if not value.isdigit() or not 0 < len(value) <= 12 or int(value) == 0:
        raise BadRequest(f"{name.decode()} must be a whole number of milliseconds of at least 1.")
    return int(value) / 1000


class _Ranked(msgspec.Struct, gc=False):
    priority: Raw = Raw(b"")


_RANKED = msgspec.json.Decoder(_Ranked)


def priority_of(source: str, headers: Mapping[bytes, bytes], body: bytes) -> int:
    """The request's priority, smaller first, 0 when it names none.

    Args:
        source: `header`: X-Priority; `body`: the field `priority`, which engines read as well.
    Raises:
        BadRequest: the header is no whole number. A field that is none is the engine's to judge.
    """
    if source == "body":
        stated = bytes(_RANKED.decode(body).priority)
        return int(stated) if _PRIORITY.fullmatch(stated) else 0
    stated = headers.get(PRIORITY_HEADER, b"0")
    if not _PRIORITY.fullmatch(stated):
        raise BadRequest("x-priority must be a whole number; a smaller one goes first.")
    return int(stated)
