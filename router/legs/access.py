"""EngineAccess: the key that an engine wants, and the TLS by which it is reached. No client's key is ever sent."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from router.contract.engine_hosts import EngineHosts
from router.contract.errors import BadSettings


class Follower(Protocol):
    """Something that keeps what `headers` gave it."""

    def take_key(self) -> None:
        """The key may have changed: ask again."""


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """One for all engines of a router."""

    key: str = field(default="", repr=False)
    """For every engine that `keys` does not name; empty: none."""
    keys: dict[str, str] = field(default_factory=dict, repr=False)
    """Of single engines, by URL; an empty one means that the engine gets none."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """For https:// URLs, asked at each dial; None: the system's authorities, no client certificate."""
    server_name: str = ""
    """Name that certificates of https:// engines must have; empty: that of each URL."""
    hosts: EngineHosts = field(default_factory=EngineHosts)
    """Where engines may be."""
    followers: WeakSet[Follower] = field(default_factory=WeakSet, repr=False, compare=False)
    """Whoever keeps a key, to hear when that is another one."""

    def change(self, keys: Mapping[str, str]) -> None:
        """These are the keys of single engines from here on."""
        self.keys.clear()
        self.keys.update(keys)
        for follower in tuple(self.followers):
            follower.take_key()

    def headers(self, url: str) -> dict[str, str]:
        """What every request to the engine at `url` carries."""
        key = self.keys.get(url, self.key)
        return {"authorization": f"Bearer {key}"} if key else {}

    def context(self) -> ssl.SSLContext:
        """The TLS of https:// URLs."""
        return self.tls() if self.tls is not None else _system_tls()


@cache
def _system_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


def read_engine_keys(path: str) -> dict[str, str]:
    """Keys by URL from a file of lines `URL KEY`; a line without a key means that the engine gets none.

    Raises:
        BadSettings: it cannot be read, or a line is not of that form.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSettings(f"The file of engine keys {path} cannot be read: {error}.") from error
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        url, *rest = line.split()
        if len(rest) > 1 or not url.startswith(("http://", "https://")):
            raise BadSettings(f"Line {number} of the file of engine keys {path} must look like: URL KEY.")
        keys[url.rstrip("/")] = rest[0] if rest else ""
    return keys
