"""Intake: a client request, read once. Past this point nobody looks into a dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec import Raw

from router.contract.instance import Mode
from router.core.timing import Deadlines
from router.core.trace import Trace

BYTES_PER_TOKEN = 4
"""How many body bytes are counted as one prompt token where only the relative size of requests matters."""


class Endpoint(StrEnum):
    """The paths that are passed to engines. Those of SPLIT may have two legs, all others have one."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    EMBEDDINGS = "/v1/embeddings"
    SCORE = "/v1/score"
    RERANK = "/v1/rerank"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"


UNNAMED_TOKENS = 4096
"""What an answer is expected to need at most where its request does not say."""

_DIGITS = 10
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

SPLIT = frozenset({Endpoint.CHAT, Endpoint.COMPLETIONS})
GENERATING = SPLIT | {Endpoint.RESPONSES, Endpoint.MESSAGES}
MODEL_OPTIONAL = frozenset({Endpoint.TOKENIZE, Endpoint.DETOKENIZE})
"""Where there is one model only, these need not name it."""


@dataclass(slots=True)
class Intake:
    """A validated request. Not frozen, because one is made per request and a frozen one costs three times as much."""

    endpoint: Endpoint
    body: bytes
    """JSON object as the client sent it, less the fields that a client must not set."""
    model: str
    stream: bool
    """The client asked for a stream in so many words; what is answered is the engine's own verdict."""
    whole: str
    """Why this request cannot be split into prefill and decode (an option, or its endpoint), or empty when it can."""
    trace: bytes = b""
    """Header lines that both legs carry as they came (W3C trace context), each ending in CRLF."""
    client_id: str = ""
    """The client's own X-Request-Id, or empty."""
    session: Raw | bytes = b""
    """Requests with the same bytes here belong together; empty, `null` or `""` when the client says nothing of it."""
    prompt: Raw | bytes = b""
    """JSON of the prompt or of the messages, as the client sent it."""
    marks: Sequence[int] | None = None
    """Of the prompt's beginnings (see prefix), once somebody has asked for them."""
    kept_tokens: int = 0
    """Of the prompt, what the chosen prefill instance is believed to have computed before."""
    allowed: frozenset[Mode] | None = None
    """The modes that the client accepts; None: any."""
    request_id: str = ""
    """Ours, where choices are explained."""
    traced: Trace | None = None
    """Its place in a trace, if it is recorded here."""
    arrived_at: float = 0.0
    """When the request had been read as a whole, monotonic seconds; all its times count from here."""
    caller: str = ""
    """The name of the API key that it came with, or empty where none is needed."""
    priority: int = 0
    """A smaller one comes in first where requests wait."""
    owner: str = ""
    """The model whose budget it counts against: its own one, or the one that has this name as an alias or adapter."""
    explained: bool = False
    """Its client wants to be told of its way."""
    deadlines: Deadlines | None = None
    """Its own ones, shorter than those of the settings; None: those."""

    previous: Raw | bytes = b""
    """JSON of `previous_response_id`: only who holds that answer can go on from it; empty for most requests."""
    fields: Mapping[str, Raw] | None = None
    """The members of `body`, where they are known already: a long prompt is not to be read more often than needed."""

    @property
    def prompt_tokens(self) -> int:
        """An estimate of the prompt's size, in tokens; at least 1."""
        return len(self.body) // BYTES_PER_TOKEN + 1

    @property
    def max_tokens(self) -> int:
        """How many tokens may be generated, at most; where the request does not say, UNNAMED_TOKENS."""
        if self.endpoint not in GENERATING:
            return 0
        stated = [bytes(self.fields[name]) for name in _LIMITS if name in self.fields] if self.fields else []
        return next((int(one) for one in stated if one.isdigit() and len(one) < _DIGITS), UNNAMED_TOKENS)
