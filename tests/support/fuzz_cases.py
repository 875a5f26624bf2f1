"""Hostile bytes for the HTTP door: good requests, spoilt. Case `number` of a seed is always the same."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Dice = random.Random


class Ending(StrEnum):
    """What the client does once it has sent everything."""

    WAIT = "wait"
    CLOSE = "close"
    RESET = "reset"


@dataclass(frozen=True, slots=True)
class FuzzCase:
    """What one client sends, in the pieces in which it sends it."""

    name: str
    pieces: tuple[bytes, ...]
    ending: Ending

    @property
    def raw(self) -> bytes:
        return b"".join(self.pieces)


HEADERS = (
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: identity",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Content-Length: 0x10",
    b"Content-Length: 5",
    b"Content-Length: 1e3",
    b"Connection: close",
    b"Connection: upgrade, x",
    b"Upgrade: websocket",
    b"Upgrade: h2c",
    b"Expect: 100-continue",
    b"Expect: something",
    b"Content-Encoding: gzip",
    b"Host:",
    b"Origin: http://ui.example",
    b"Authorization: Bearer \xff\xfe",
    b"X-Request-Id: \xe9\x00",
    b"X-Request-Deadline-Ms: 99999999999999999999",
    b"X-Request-Timeout-Ms: -1",
    b"Traceparent: 00-zz",
    b"Traceparent: 00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01",
    b"X-Session-Id: \xff",
    b"X-Long: " + b"a" * 70_000,
    b"Priority: u=9, i",
    b" Folded: x",
    b": nameless",
    b"Na me: x",
)
TOKENS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b"\xff",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"HTTP/9.9",
    b"%00",
    b"%2F..",
    b" ",
    b":",
)
PATHS = (
    *(
        b"/v1/chat/completions",
        b"/v1/completions",
        b"/v1/completions?x=1",
        b"/v1/models",
        b"/v1/models/%2e%2e%2f",
        b"/tokenize",
    ),
    *(
        b"/v1/embeddings",
        b"/healthz",
        b"/readyz",
        b"/metrics",
        b"/admin/fleet",
        b"/admin/drain",
        b"/docs",
        b"/openapi.json",
        b"/ui",
    ),
    *(
        b"*",
        b"http://evil.example/v1/models",
        b"//v1/models",
        b"/\xff\xfe",
        b"/%ff",
        b"/" + b"a" * 9000,
        b"/v1/responses",
        b"/%00",
    ),
)
HOT = (b"/v1/chat/completions", b"/v1/completions")
METHODS = (
    b"POST",
    b"POST",
    b"POST",
    b"POST",
    b"GET",
    b"HEAD",
    b"PUT",
    b"OPTIONS",
    b"DELETE",
    b"TRACE",
    b"CONNECT",
    b"BREW",
    b"post",
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, -0.0, 1.5, 1e308, "", "x", "é🌍", "\x00", "\ud800", "m" * 300),
    *(
        [],
        [None],
        [[]],
        [1, "a"],
        ["a", "b"],
        [[1], [2]],
        {},
        {"a": {}},
        {"include_usage": 1},
        [{"role": 1}],
        [{"role": "user"}],
    ),
)
FIELDS = (
    *(
        "model",
        "prompt",
        "messages",
        "stream",
        "stream_options",
        "n",
        "best_of",
        "use_beam_search",
        "prompt_logprobs",
        "echo",
    ),
    *(
        "logprobs",
        "kv_transfer_params",
        "request_id",
        "session_id",
        "prompt_cache_key",
        "user",
        "max_tokens",
        "temperature",
        "é",
    ),
)


def _body(dice: Dice) -> bytes:
    fields: dict[str, Any] = {"model": "m", "prompt": "hi"}
    if dice.random() < 0.5:
        fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": dice.random() < 0.5}
    for _ in range(dice.choice((0, 0, 1, 2, 4))):
        fields[dice.choice(FIELDS)] = dice.choice(VALUES)
    raw = json.dumps(fields, ensure_ascii=dice.random() < 0.5).encode("utf-8", "surrogatepass")
    kind = dice.random()
    if kind < 0.1:
        return _spoil(dice, raw)
    if kind < 0.13:
        depth = dice.choice((10, 900, 1100, 100_000))
        return b'{"model":"m","x":' + b"[" * depth + b"]" * dice.choice((depth, depth - 1)) + b"}"
    if kind < 0.16:
        return dice.choice(
            (b"", b"[]", b"null", b"{", b"\xef\xbb\xbf{}", b'{"model":"m"}x', b'{"model":"m","a":NaN}', b"\x1f\x8b\x08")
        )
    return raw


def _chunked(dice: Dice, body: bytes) -> bytes:
    pieces, at = [], 0
    while at < len(body):
        size = dice.randint(1, 40)
        piece = body[at : at + size]
        pieces.append(b"%x%b\r\n%b\r\n" % (len(piece), dice.choice((b"", b"", b";a=b", b";\x00")), piece))
        at += size
    return b"".join(pieces) + b"0\r\n" + dice.choice((b"\r\n", b"\r\n", b"Trailer: x\r\n\r\n", b""))


def _request(dice: Dice) -> bytes:
    body = _body(dice)
    usual = dice.random() < 0.75
    method, path = (b"POST", dice.choice(HOT)) if usual else (dice.choice(METHODS), dice.choice(PATHS))
    lines = [b"%b %b HTTP/1.%d" % (method, path, dice.random() < 0.95), b"Host: t"]
    if dice.random() < 0.25:
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunked(dice, body)
    else:
        length = len(body) if dice.random() < 0.9 else dice.choice((0, len(body) + 1, max(0, len(body) - 1)))
        lines.append(b"Content-Length: %d" % length)
    for _ in range(dice.randrange(3) if dice.random() < 0.5 else 0):
        lines.insert(dice.randint(1, len(lines)), dice.choice(HEADERS))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _spoil(dice: Dice, raw: bytes) -> bytes:
    """`raw` with one to four faults."""
    for _ in range(dice.randint(1, 4)):
        raw = dice.choice(_FAULTS)(dice, raw, dice.randint(0, len(raw)))
    return raw


_FAULTS: tuple[Callable[[Dice, bytes, int], bytes], ...] = (
    lambda dice, raw, at: raw[:at] + bytes([dice.randrange(256)]) + raw[at + 1 :],
    lambda dice, raw, at: raw[:at] + dice.choice(TOKENS) + raw[at:],
    lambda dice, raw, at: raw[:at] + raw[at + dice.randint(1, 20) :],
    lambda dice, raw, at: raw[:at] + raw[max(0, at - dice.randint(1, 60)) :],
    lambda dice, raw, at: raw[:at],
    lambda dice, raw, at: raw[:at] + dice.randbytes(dice.randint(1, 30)) + raw[at:],
)


def fuzz_case(seed: int, number: int) -> FuzzCase:
    """Case `number` of `seed`: one to three requests, in one to many pieces."""
    dice = Dice(f"{seed}.{number}")
    raw = b"".join(_request(dice) for _ in range(dice.choice((1, 1, 1, 2, 3))))
    if dice.random() < 0.5:
        raw = _spoil(dice, raw)
    if dice.random() < 0.03:
        raw = dice.randbytes(dice.randint(1, 3000))
    cuts = sorted(dice.randrange(len(raw) + 1) for _ in range(dice.choice((0, 0, 1, 3, 12))))
    edges = [0, *cuts, len(raw)]
    pieces = tuple(raw[start:end] for start, end in itertools.pairwise(edges) if end > start)
    return FuzzCase(
        f"{seed}.{number}", pieces, dice.choice((Ending.WAIT, Ending.WAIT, Ending.WAIT, Ending.CLOSE, Ending.RESET))
    )
