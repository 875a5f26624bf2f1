"""Tail: what the end of a streamed answer says, kept while the bytes go by, and how fast they came.

Events are not parsed one by one; the last few KiB tell how the stream ended and, if the client asked for it, the usage.
"""

from __future__ import annotations

import re

from router.core.cadence import GAP_S, SEAM_BYTES, brings_content, count_gaps

KEPT_BYTES = 4096

_DONE = b"\ndata: [DONE]"
# What a model says stands in JSON strings, its line breaks and quotes escaped, so it cannot end its own stream.
_FINISHED = re.compile(
    rb'"finish_reason": ?"\w+"'
    rb"|(?:^|[\r\n])(?:data: ?\[DONE\]|event: ?(?:message_stop|response\.(?:completed|incomplete|failed)))"
)
_ERROR = re.compile(
    rb'data: ?\{"error":|"finish_reason": ?"error"|(?:^|[\r\n])event: ?(?:response\.failed|error)[\r\n]'
)
_CHOICE = b"[{"  # of "choices":[{, with or without a space before it
_USAGE = b'"usage"'
_USAGE_BYTES = 1024
"""Usage stands within so many bytes of the end."""
_USUAL = re.compile(
    rb'"usage": ?\{"prompt_tokens": ?(\d{1,12}), ?(?:"total_tokens": ?\d+, ?)?"completion_tokens": ?(\d{1,12})[,}]'
)
"""As OpenAI and engines write it."""
_TOKENS = re.compile(rb'"(prompt|completion)_tokens": ?(\d{1,12})')
_NO_TOKENS = (0, 0)


class Tail:
    """The last bytes of a body; `feed` costs little more than an append, whatever has gone by."""

    # Defaults of the class cost nothing per request.
    num_bytes = 0
    content_at = 0.0
    """When the first content came, 0.0 before."""
    events_before_content = 0
    _full_at = 2 * KEPT_BYTES
    _events = 0
    _counted = 0
    """Pieces whose events are among those."""
    _gaps: list[int] | None = None

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._moments: list[float] = []

    def feed(self, body: bytes, at: float) -> None:
        """`body` has gone by at `at`, monotonic seconds."""
        self._pieces.append(body)
        self.num_bytes = num_bytes = self.num_bytes + len(body)
        if self.content_at:
            self._moments.append(at)
        else:
            self._look_for_content(body, at)
        if num_bytes > self._full_at:
            self._shorten()

    @property
    def num_events(self) -> int:
        """Server-sent events so far; one that was cut where the kept bytes begin may count for none."""
        return self._events + b"".join(self._pieces[self._counted :]).count(b"data:")

    def _look_for_content(self, body: bytes, at: float) -> None:
        seen = b"".join(self._pieces[:-1])[-SEAM_BYTES:] + body if len(self._pieces) > 1 else body
        if brings_content(seen):
            self.content_at = at
            self.events_before_content = self.num_events - body.count(b"data:")
            self._moments.append(at)

    def _shorten(self) -> None:
        self._events = self.num_events
        self._counted = 1
        kept = b"".join(self._pieces)[-KEPT_BYTES:]
        self._pieces = [kept]
        self._full_at = self.num_bytes + KEPT_BYTES
        if len(self._moments) > 1:
            self._gaps = self._gaps or [0] * (len(GAP_S) + 1)
            count_gaps(self._moments, self._gaps)
            del self._moments[:-1]

    def read(self) -> bytes:
        """The last bytes, at most 2 * KEPT_BYTES."""
        return b"".join(self._pieces)

    def count_gaps(self, counts: list[int]) -> None:
        """The gaps are added to `counts`, one for each bound of GAP_S and one above.

        Usage and [DONE] come at once after the last token, so reads at the end that bring no choice are left out.
        """
        if self._gaps is not None:
            for place, gaps in enumerate(self._gaps):
                counts[place] += gaps
        num, pieces = len(self._moments), self._pieces
        while num > 1 and _CHOICE not in pieces[num - len(self._moments) - 1]:
            num -= 1
        if num > 1:
            count_gaps(self._moments if num == len(self._moments) else self._moments[:num], counts)


def ended_well(tail: bytes) -> bool:
    """True when a stream that ends so has ended on purpose: it is done, finished, or carries the engine's own error."""
    return tail.rfind(_DONE) >= 0 or _FINISHED.search(tail) is not None or tells_error(tail)


def tells_error(tail: bytes) -> bool:
    """True when the engine itself reports a failure at the end of a well-formed answer."""
    return b'"error"' in tail and _ERROR.search(tail) is not None


def usage_of(tail: bytes) -> tuple[int, int]:
    """Tokens of the prompt and generated tokens, as the newest usage object tells them, or 0."""
    end = tail[-_USAGE_BYTES:]
    at = end.rfind(_USAGE)
    if at < 0:
        return _NO_TOKENS
    usual = _USUAL.match(end, at)
    if usual is not None:
        return int(usual[1]), int(usual[2])
    told = dict(_TOKENS.findall(end, at))
    return int(told.get(b"prompt", 0)), int(told.get(b"completion", 0))
