"""Keyring: who a caller is, by the SHA-256 of its API key. The keys themselves are nowhere in this process.

An entry is `name:digest`, the digest as 64 hex digits: `printf %s "$KEY" | sha256sum`. Several keys may have one name.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from router.contract.errors import BadSettings
from router.watched import WatchedFiles

_BEARER = b"bearer "
_HEX = frozenset(string.hexdigits)
_PREFIX_BYTES = 8
"""What the table is searched by; the rest of a digest is compared in constant time."""

Table = Mapping[bytes, Sequence[tuple[bytes, str]]]


def read_key(headers: Mapping[bytes, bytes]) -> bytes:
    """The key that a request carries, as `Authorization: Bearer` or `X-Api-Key`; empty for none."""
    value = headers.get(b"authorization")
    if value is None:
        return headers.get(b"x-api-key", b"")
    return value[len(_BEARER) :].strip() if value[: len(_BEARER)].lower() == _BEARER else b""


class Keyring:
    """The keys of all callers: those of the settings and those of a file, which is read again when it changes."""

    def __init__(self, entries: Sequence[str], path: Path | None) -> None:
        """Read both.

        Raises:
            BadSettings: the file cannot be read, or an entry is none.
        """
        self._entries = tuple(entries)
        self._path = path
        self._files = WatchedFiles([path] if path is not None else [])
        self._table: Table = {}
        self._read()

    def caller(self, headers: Mapping[bytes, bytes]) -> str | None:
        """The name of the key that a request carries, or None when it carries nobody's."""
        value = headers.get(b"authorization", b"")
        # As nearly everybody writes it; one of these runs per request.
        return self.name_of(value[7:].strip() if value[:7] == b"Bearer " else read_key(headers))

    def name_of(self, key: bytes) -> str | None:
        """The name that this key was given, or None when it is nobody's."""
        digest = sha256(key).digest()
        for known, name in self._table.get(digest[:_PREFIX_BYTES], ()):
            if compare_digest(known, digest):
                return name
        return None

    def names(self) -> frozenset[str]:
        """Of all callers."""
        return frozenset(name for entries in self._table.values() for _, name in entries)

    def refresh(self) -> None:
        """A file that has changed is in force; one that cannot be read leaves the keys as they are, and is logged."""
        self._files.reread(self._read, "API keys")

    def _read(self) -> None:
        lines = list(self._entries)
        if self._path is not None:
            try:
                lines += self._path.read_text("utf-8").splitlines()
            except (OSError, UnicodeDecodeError) as error:
                raise BadSettings(f"The file of API keys {self._path} cannot be read: {error}.") from error
        table: dict[bytes, list[tuple[bytes, str]]] = {}
        for line in lines:
            entry = line.partition("#")[0].strip()
            if entry:
                digest, name = _parse(entry)
                table.setdefault(digest[:_PREFIX_BYTES], []).append((digest, name))
        self._table = table


def _parse(entry: str) -> tuple[bytes, str]:
    name, colon, digest = entry.rpartition(":")
    if not colon or not name.strip() or len(digest) != 64 or not _HEX.issuperset(digest):
        # The entry may be a key that somebody has put in by mistake, so it is not shown.
        raise BadSettings("An API key entry must look like name:digest, the digest being the key's SHA-256 in hex.")
    return bytes.fromhex(digest), name.strip()
