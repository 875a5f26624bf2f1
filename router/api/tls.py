"""TLS contexts of files that are read again when they change: certificates, keys, and authorities."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

from router.contract.errors import BadSettings
from router.watched import WatchedFiles


class Tls:
    """The TLS of one side, as its files are now or last were good."""

    def __init__(self, make: Callable[[], ssl.SSLContext], files: tuple[str, ...]) -> None:
        """`make` reads the files; empty names are none.

        Raises:
            BadSettings: they cannot be read or do not belong together.
        """
        self._make = make
        self._files = WatchedFiles([Path(name) for name in files if name])
        self.context = make()
        """For new connections. Each change makes a whole new one, since no authority can be taken out of a context."""

    def refresh(self) -> None:
        """New connections are made by what is in the files now, unless it cannot be used."""
        self._files.reread(self._read, "Certificates")

    def _read(self) -> None:
        self.context = self._make()

    def carry_on(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """A handshake that begins in an older `context` goes on in the present one."""
        if context is not self.context:
            connection.context = self.context


def server_certificate(certificate: str, key: str, client_ca: str) -> Tls:
    """What this router shows its clients. With `client_ca` they must show a certificate of that authority.

    Whoever listens keeps the first context; it carries every handshake on in the newest.

    Raises:
        BadSettings: a file cannot be used.
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            # A session that is resumed shows no certificate: who is trusted no more would come in by an old ticket.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
            _trust(context, client_ca)
        _show(context, certificate, key)
        return context

    made = Tls(make, (certificate, key, client_ca))
    made.context.sni_callback = made.carry_on
    return made


def engine_tls(engine_ca: str, certificate: str, key: str) -> Tls:
    """How engines are believed, and what this router shows them, if anything.

    Args:
        engine_ca: file of the authorities that engines' certificates come from; empty: those of the system.
    Raises:
        BadSettings: a file cannot be used.
    """

    def make() -> ssl.SSLContext:
        context = ssl.create_default_context() if not engine_ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if engine_ca:
            _trust(context, engine_ca)
        if certificate:
            _show(context, certificate, key)
        return context

    return Tls(make, (engine_ca, certificate, key))


def _show(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key or None)
    except OSError as error:  # SSLError is one
        raise BadSettings(f"The certificate {certificate} cannot be used: {error}.") from error


def _trust(context: ssl.SSLContext, authority: str) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise BadSettings(f"The certificate authority {authority} cannot be read: {error}.") from error
