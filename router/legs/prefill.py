"""The prefill leg: its body, and its answer, of which only the hand-over counts.

Prefill computes the prompt and one token that nobody sees; whatever would make it do more, or refuse a request of one
token, is set or left out. Everything else goes through untouched, known or not, because it may change the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec
from msgspec import Raw

from router.contract.errors import Blame, LegBroken
from router.legs.connection import Connection
from router.legs.leg import Leg, LegOwner

MAX_ANSWER_BYTES = 4 * 1024 * 1024

_ABSENT = frozenset(
    {
        "stream_options",  # refused without stream
        "min_tokens",  # refused above max_tokens
        "min_completion_tokens",
        "n",  # one sequence is handed over
        "best_of",
        "use_beam_search",
        "logprobs",  # the token is thrown away
        "top_logprobs",
        "prompt_logprobs",
        "echo",
    }
)
_PROMPT = frozenset(
    {
        "model",
        "prompt",
        "suffix",
        "messages",
        "add_special_tokens",
        "truncate_prompt_tokens",
        "tools",
        "tool_choice",
        "documents",
        "chat_template",
        "chat_template_kwargs",
        "add_generation_prompt",
        "continue_final_message",
        "reasoning_effort",
        "mm_processor_kwargs",
        "cache_salt",
    }
)
"""What a prompt is made of, in vLLM 0.32."""
_SET = frozenset({"max_tokens", "max_completion_tokens", "stream", "kv_transfer_params"})
"""What `prefill_body` says itself."""
_ONE, _FALSE = Raw(b"1"), Raw(b"false")
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_ENCODER = msgspec.json.Encoder()


def prefill_body(body: bytes, params: bytes, known: Mapping[str, Raw] | None = None) -> bytes:
    """The client's JSON object as prefill gets it, with `params` as its kv_transfer_params.

    Args:
        known: the members of `body`, if they have been read before.

    Raises:
        msgspec.DecodeError: `body` is not a JSON object; intake has made sure that it is.
    """
    fields = _FIELDS.decode(body) if known is None else dict(known)
    if not _ABSENT.isdisjoint(fields):
        for name in _ABSENT:
            fields.pop(name, None)
    fields["max_tokens"] = _ONE
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = _ONE
    fields["stream"] = _FALSE
    fields["kv_transfer_params"] = Raw(params)
    return _ENCODER.encode(fields)


def bare_request(request: bytes) -> bytes:
    """A prefill leg's request, less what has no part in the prompt: some of that may be what prefill fails of."""
    head, _, body = request.partition(b"\r\n\r\n")
    fields = {name: value for name, value in _FIELDS.decode(body).items() if name in _PROMPT or name in _SET}
    bare = _ENCODER.encode(fields)
    return b"%bcontent-length: %d\r\n\r\n%b" % (head.rpartition(b"content-length: ")[0], len(bare), bare)


class PrefillLeg(Leg):
    """Collects the whole answer, then reports it once."""

    side = Blame.PREFILL
    _pieces: list[bytes] | None = None
    _size = 0

    def once_more(self, owner: LegOwner) -> Self:
        """A leg of another owner: the same prompt, under the same id, is on its way to the same engine."""
        leg = type(self)(owner, self._pool)
        leg.send(bare_request(self._request))
        return leg

    def on_answer(self, connection: Connection, body: bytes, ended: bool) -> None:
        """Report the answer once it is whole."""
        if ended:
            self.connection = None
            self.ended = True
            if self._pieces is not None:
                body = b"".join((*self._pieces, body))
            self.owner.on_prefill_answer(connection.status, connection.headers, body)
            return
        if self._pieces is None:
            self._pieces = []
        self._pieces.append(body)
        self._size += len(body)
        if self._size > MAX_ANSWER_BYTES:
            self.cancel()
            self.owner.on_leg_failed(
                self, LegBroken(f"The prefill instance answered more than {MAX_ANSWER_BYTES} bytes.", side=self.side)
            )
