"""Security: what the settings say about keys, origins and certificates, as the objects that keep it."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import uvicorn

from router.api.cors import Cors
from router.api.door import NOT_PLAIN
from router.api.engine_keys import EngineKeyFile
from router.api.front import App
from router.api.gate import Gate
from router.api.keys import Keyring
from router.api.tls import Tls, engine_tls, server_certificate
from router.contract.engine_hosts import read_engine_hosts
from router.contract.hosts import Reach, reach_of
from router.legs.access import EngineAccess
from router.settings import Settings
from router.watched import Refreshable

ContextFactory = Callable[[uvicorn.Config, Callable[[], ssl.SSLContext]], ssl.SSLContext]


@dataclass(frozen=True, slots=True)
class Security:
    """All of one router."""

    gate: Gate
    access: EngineAccess
    cors_origins: tuple[str, ...]
    certificate: Tls | None
    """What clients are shown; None: they speak plain HTTP."""
    refreshables: tuple[Refreshable, ...]
    """What is read again when its files change."""

    @property
    def escorted(self) -> frozenset[bytes]:
        """Headers of requests that only ASGI serves in full."""
        return NOT_PLAIN | {b"origin"} if self.cors_origins else NOT_PLAIN

    def guard(self, app: App) -> App:
        """`app`, which pages of the allowed origins may call."""
        return Cors(app, self.cors_origins) if self.cors_origins else app

    @property
    def server_tls(self) -> ContextFactory | None:
        """What uvicorn asks for its TLS context, or None for plain HTTP."""
        shown = self.certificate
        return None if shown is None else lambda config, default: shown.context


def build_security(settings: Settings) -> Security:
    """Everything that the settings say.

    Raises:
        BadSettings: a file cannot be used.
    """
    keyring = None
    if settings.api_keys or settings.api_key_file:
        keyring = Keyring(settings.api_keys, Path(settings.api_key_file) if settings.api_key_file else None)
    shown = (
        server_certificate(settings.tls_cert, settings.tls_key, settings.tls_client_ca) if settings.tls_cert else None
    )
    access, own = _access(settings)
    key_file = EngineKeyFile(access, settings.engine_key_file) if settings.engine_key_file else None
    return Security(
        gate=Gate(keyring, settings.admin_key, admin_open=reach_of(settings.host) is Reach.HERE),
        access=access,
        cors_origins=settings.cors_origins,
        certificate=shown,
        refreshables=tuple(one for one in (keyring, shown, own, key_file) if one is not None),
    )


def _access(settings: Settings) -> tuple[EngineAccess, Tls | None]:
    hosts = read_engine_hosts(settings.engine_hosts)
    plain = EngineAccess(settings.engine_key, server_name=settings.engine_server_name, hosts=hosts)
    if not settings.engine_ca and not settings.engine_cert:
        return plain, None
    tls = engine_tls(settings.engine_ca, settings.engine_cert, settings.engine_cert_key)
    return replace(plain, tls=lambda: tls.context), tls
