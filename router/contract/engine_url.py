"""The URL of an engine: which are of the form that legs can use, and where each leads."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from router.contract.errors import BadSettings

_PORTS = {"http": 80, "https": 443}
_CLEAN = re.compile(r"[!-~]+")
"""Header lines are made of a URL, so it is visible ASCII; names of other scripts have their ASCII form (RFC 5891)."""
_STRAY = frozenset("?#@\\")
_LABEL_CHARS = 63
"""Of a name between two dots (RFC 1035)."""


@dataclass(frozen=True, slots=True)
class EngineUrl:
    """One that is of the right form, in its parts."""

    scheme: str
    """http or https."""
    host: str
    """Lower case; an IPv6 address without its brackets."""
    port: int
    authority: str
    """Host and port as they stand in the URL and in the header Host."""


def read_engine_url(url: str) -> EngineUrl:
    """The parts of `http://host:port` or `https://host:port`; IPv6 hosts in brackets.

    Raises:
        BadSettings: it is none of that form: another scheme, a path, a user, no host, or a port that cannot be.
    """
    try:
        parts = urlsplit(url)
        port = _PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
        host = parts.hostname or ""
    except ValueError:  # brackets without their fellows, or a port above 65535
        raise _bad(url) from None
    labels = host.removesuffix(".").split(".")
    clean = _CLEAN.fullmatch(url) and _STRAY.isdisjoint(url)
    bare = clean and parts.path in ("", "/") and not parts.netloc.endswith(":")
    if (
        not bare
        or not port
        or parts.scheme not in _PORTS
        or not all(0 < len(label) <= _LABEL_CHARS for label in labels)
    ):
        raise _bad(url)
    return EngineUrl(parts.scheme, host, port, parts.netloc)


def _bad(url: str) -> BadSettings:
    return BadSettings(f"The engine URL {url!r} must look like http://host:port or https://host:port.")
