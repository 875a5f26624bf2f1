"""How a mock engine behaves: how fast it answers, with what, and what goes wrong."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

from router.contract.wire import Handoff


class Fault(StrEnum):
    """What goes wrong, once the request has been read."""

    NONE = "none"
    REFUSE = "refuse"
    """Answer `status` with `error_body`."""
    CLOSE = "close"
    """Close without a byte of an answer."""
    HANG = "hang"
    """Never answer."""
    CUT = "cut"
    """Close in the middle of the answer, after `fault_after` events (or half of a JSON body)."""
    STALL = "stall"
    """Go silent after `fault_after` events."""
    NO_END = "no_end"
    """End the stream cleanly after `fault_after` events, without a finish reason and without [DONE]."""
    GARBAGE = "garbage"
    """Answer bytes that are not HTTP."""
    NO_HAND_OVER = "no_hand_over"
    """Prefill answers 200 without kv_transfer_params."""
    EMPTY = "empty"
    """Answer 200 with an empty body."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How an engine answers. Times are seconds."""

    delay_s: float = 0.0
    """Before the first byte of an answer."""
    gap_s: float = 0.0
    """Between two events of a stream; 0 sends them all at once."""
    num_events: int = 16
    event: bytes = b'{"id":"c","object":"text_completion","choices":[{"index":0,"text":"tok ","finish_reason":null}]}'
    piece_bytes: int = 0
    """Send the answer in pieces of so many bytes, each written on its own; 0: in one piece per event."""
    answer: bytes = (
        b'{"id":"c","object":"text_completion","model":"m","choices":[{"index":0,"text":"tok","finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
    )
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """More headers of the answer."""
    fault: Fault = Fault.NONE
    fault_after: int = 0
    times: int = -1
    """How often the fault happens before the engine is well again; -1: always."""
    status: int = 500
    error_body: bytes = b'{"error":{"message":"mock","type":"server_error","param":null,"code":"mock"}}'
    idle_close_s: float = 0.0
    """Close a connection that has been idle for so long; 0: never."""
    half_open: bool = False
    """Never notice that a connection has closed: a request stays open until it is taken back."""
    ready_status: int = 200
    """Answer to `GET /readyz`; 0: none."""
    cancel_status: int = 200
    """Answer to a take-back; other than 200 nothing is taken back."""


@dataclass(slots=True)
class Seen:
    """A request as the engine got it."""

    path: str
    headers: dict[str, str]
    body: bytes
    handoff: Handoff | None
    aborted: bool = False
    """The connection closed before the answer was complete."""

    @property
    def fields(self) -> dict[str, object]:
        """The decoded body."""
        return cast("dict[str, object]", json.loads(self.body))
