"""Certificates: TLS contexts whose certificate and key are read again when their files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from router.contract.errors import BadSettings
from router.watched import WatchedFiles

LOG = logging.getLogger("tandem.router")


class Certificate:
    """A certificate with its private key, shown by one TLS context."""

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path | None) -> None:
        """`key` is None when the certificate's file holds it as well.

        Raises:
            BadSettings: they cannot be read or do not belong together.
        """
        self.context = context
        self._certificate, self._key = certificate, key
        self._files = WatchedFiles([certificate] if key is None else [certificate, key])
        self._load()

    def refresh(self) -> None:
        """New connections see the certificate that is in the files now, unless it cannot be used."""
        if not self._files.changed():
            return
        try:
            self._load()
        except BadSettings as error:
            LOG.warning("The certificate stays as it was. %s", error.message)
            return
        LOG.info("certificate read again from %s", self._certificate)

    def _load(self) -> None:
        try:
            # A context that is given a certificate without its key loses the key it had, so a fresh one tries first.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
            self.context.load_cert_chain(self._certificate, self._key)
        except OSError as error:  # SSLError is one
            raise BadSettings(f"The certificate {self._certificate} cannot be used: {error}.") from error


def server_certificate(certificate: str, key: str, client_ca: str) -> Certificate:
    """What this router shows its clients. With `client_ca` they must show a certificate of that authority.

    Raises:
        BadSettings: a file cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        _trust(context, client_ca)
    return Certificate(context, Path(certificate), Path(key) if key else None)


def engine_tls(engine_ca: str, certificate: str, key: str) -> tuple[ssl.SSLContext, Certificate | None]:
    """How engines are believed, and what this router shows them, if anything.

    Args:
        engine_ca: file of the authorities that engines' certificates come from; empty: those of the system.
    Raises:
        BadSettings: a file cannot be used.
    """
    context = ssl.create_default_context() if not engine_ca else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if engine_ca:
        _trust(context, engine_ca)
    shown = Certificate(context, Path(certificate), Path(key) if key else None) if certificate else None
    return context, shown


def _trust(context: ssl.SSLContext, authority: str) -> None:
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise BadSettings(f"The certificate authority {authority} cannot be read: {error}.") from error
