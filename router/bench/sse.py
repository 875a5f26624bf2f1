"""Server-sent events, and what a load generator reads out of an OpenAI answer."""

from __future__ import annotations

import msgspec

DONE = b"[DONE]"


class EventSplitter:
    """Cuts a byte stream, however it is chopped, into the payloads of its events."""

    def __init__(self) -> None:
        """Nothing has arrived yet."""
        self.rest = b""
        """What has arrived of the event that is not complete; a body without events is here as a whole."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the `data:` payloads of the events that `chunk` completes; comments and other fields are dropped."""
        whole = self.rest + chunk
        if b"\r" in whole:
            whole = whole.replace(b"\r\n", b"\n")
        *events, self.rest = whole.split(b"\n\n")
        return [payload for event in events if (payload := _payload(event)) is not None]


def _payload(event: bytes) -> bytes | None:
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


class Usage(msgspec.Struct):
    """Token counts as the server tells them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Piece(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[object] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Piece | None = None
    message: _Piece | None = None

    def has_output(self) -> bool:
        piece = self.delta or self.message
        return bool(self.text or (piece and (piece.content or piece.reasoning_content or piece.tool_calls)))


class Fault(msgspec.Struct):
    """The `error` object of OpenAI's envelope, as far as it is counted."""

    code: str | int | None = None
    type: str | None = None

    @property
    def name(self) -> str:
        """The most telling of its names."""
        return str(self.code or self.type or "error")


class Answer(msgspec.Struct):
    """One event of a stream, or a whole body: chat or completion, or an error."""

    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Fault | None = None

    @property
    def has_output(self) -> bool:
        """True when it shows at least one character, or a tool call."""
        return any(choice.has_output() for choice in self.choices)


_decoder = msgspec.json.Decoder(Answer)


def read_answer(payload: bytes) -> Answer | None:
    """Return what `payload` says; None when it is not an answer."""
    try:
        return _decoder.decode(payload)
    except msgspec.DecodeError:
        return None
