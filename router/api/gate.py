"""Gate: which paths want which key. Without keys in the settings everybody may use everything but /admin from afar."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from router.api.keys import Keyring, read_key
from router.contract.errors import TandemError, Unauthorized

OPEN = frozenset(
    {"/", "/healthz", "/health", "/readyz", "/ready", "/metrics", "/docs", "/docs/oauth2-redirect", "/openapi.json"}
)
"""Probes, scrapers and the documentation have no keys."""

_ADMIN, _UI = "/admin", "/ui"


class Gate:
    """Lets callers in by their keys."""

    def __init__(self, keyring: Keyring | None = None, admin_key: str = "", *, admin_open: bool = True) -> None:
        """`admin_open` says what holds for /admin without an admin key: open, or closed to everybody."""
        self.keyring = keyring
        self._admin = hashlib.sha256(admin_key.encode()).digest() if admin_key else None
        self._admin_open = admin_open

    def caller(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Who calls an inference path, empty where nobody needs a key; None for a caller without a valid one."""
        if self.keyring is None:
            return ""
        return self.keyring.caller(headers)

    def admit(self, path: str, headers: Mapping[bytes, bytes]) -> str | TandemError:
        """Who calls `path`, or why the call is refused."""
        if _is_under(path, _ADMIN):
            return self._admit_admin(headers)
        if self.keyring is None or path in OPEN or _is_under(path, _UI):
            return ""
        caller = self.caller(headers)
        return _refusal("an API key") if caller is None else caller

    def _admit_admin(self, headers: Mapping[bytes, bytes]) -> str | TandemError:
        if self._admin is None:
            if self._admin_open:
                return ""
            return Unauthorized("Set admin_key to use /admin of a router that others than this machine can reach.")
        if hmac.compare_digest(self._admin, hashlib.sha256(read_key(headers)).digest()):
            return ""
        return _refusal("the admin key")


def _is_under(path: str, root: str) -> bool:
    return path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/")


def _refusal(what: str) -> TandemError:
    return Unauthorized(f"Send {what} that is valid here, as `Authorization: Bearer KEY`.")
