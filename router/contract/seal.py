"""Seal: proof that whoever wrote these bytes holds the deployment key.

All shims and routers of one deployment share a key. What they tell each other beside the KV cache is sealed with it, so
that nobody else on the network can make a shim write into memory, take an attempt back, or pass for a peer. A seal is
HMAC-SHA256 over a purpose and the bytes; the purpose keeps one kind of message from being taken for another. It proves
origin and hides nothing: where the network is not trusted to listen, use TLS or a network policy as well.

A deployment without a key seals with the empty one, which everybody knows; processes that listen beyond loopback refuse
to start so (`check_key`).
"""

from __future__ import annotations

import hmac

from router.contract.errors import BadSettings
from router.contract.hosts import Reach, reach_of

MARK_BYTES = 16
"""Of the seal inside a notice or a Tag; the first half of the digest, as strong as a 128-bit guess."""
MIN_KEY_CHARS = 16
SEAL_HEADER = "X-Tandem-Seal"
KEY_VARIABLE = "TANDEM_DEPLOYMENT_KEY"
"""Where routers, shims and commands read the key; the one variable that they have in common."""

NOTICE = b"notice"
TAG = b"tag"
HELLO = b"hello"
"""A handshake's question: whom we want, at which address."""
HELLO_ANSWER = b"hello-answer"
"""A handshake's answer: who is there, with the question's nonce."""
PEER = b"peer"
"""A handshake's end: the caller's own card."""
CANCEL = b"cancel"
"""Taking an attempt back: the body of the request."""
FENCE = b"fence"
"""Declaring a process dead: the body of the request."""
STAGE = b"stage"
"""What two fabrics say to each other about a staged copy: both agents and the note."""
RECALL = b"recall"
"""Asking for KV of a prompt's beginning: the body of the request."""
SELF_TEST = b"self-test"
"""A self-test's calls, with the path behind it: the body of the request."""


class Seal:
    """One deployment's key."""

    __slots__ = ("_key",)

    def __init__(self, key: str = "") -> None:
        self._key = key.encode()

    def __repr__(self) -> str:
        return "Seal(...)" if self._key else "Seal()"

    def mark(self, purpose: bytes, message: bytes) -> bytes:
        """MARK_BYTES bytes that only holders of the key can make."""
        return hmac.digest(self._key, purpose + message, "sha256")[:MARK_BYTES]

    def holds(self, purpose: bytes, message: bytes, mark: bytes) -> bool:
        """True when a holder of the key has marked this message for this purpose."""
        return hmac.compare_digest(self.mark(purpose, message), mark)

    def header(self, purpose: bytes, message: bytes) -> str:
        """The whole digest as 64 hex digits, for SEAL_HEADER."""
        return hmac.digest(self._key, purpose + message, "sha256").hex()

    def header_holds(self, purpose: bytes, message: bytes, header: str) -> bool:
        """True when SEAL_HEADER was made by a holder of the key; never raises, whatever the header is."""
        return hmac.compare_digest(self.header(purpose, message).encode(), header.encode(errors="replace"))


def check_key(key: str, host: str) -> None:
    """A key is there if one is needed. `host` is the address that the process listens on.

    Raises:
        BadSettings: others than this machine can reach the process and there is no key, or the key is too short.
    """
    if key and len(key) < MIN_KEY_CHARS:
        raise BadSettings(
            f"deployment_key must have at least {MIN_KEY_CHARS} characters; `openssl rand -hex 32` makes one."
        )
    if not key and reach_of(host) is not Reach.HERE:
        raise BadSettings(
            f"Listening on {host} needs a deployment_key, equal on all routers and shims: set {KEY_VARIABLE} "
            "to the output of `openssl rand -hex 32`, or listen on 127.0.0.1."
        )
