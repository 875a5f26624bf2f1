"""Certificates for tests, made by the command `openssl`: an authority, a server at 127.0.0.1, a client."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """A folder in which certificates are made."""

    folder: Path

    @property
    def authority(self) -> str:
        return str(self.folder / "ca.pem")

    def issue(self, name: str) -> tuple[str, str]:
        """Certificate and key of `name`, good for 127.0.0.1, signed by the authority."""
        if not (self.folder / "ca.pem").exists():
            _openssl(
                self.folder, "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2", "/CN=ca", "ca"
            )
        more = "-addext subjectAltName=IP:127.0.0.1 -CA ca.pem -CAkey ca.key"
        _openssl(
            self.folder,
            f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 {more}",
            f"/CN={name}",
            name,
        )
        return str(self.folder / f"{name}.pem"), str(self.folder / f"{name}.key")


def _openssl(folder: Path, command: str, subject: str, name: str) -> None:
    arguments = [*command.split(), "-subj", subject, "-out", f"{name}.pem", "-keyout", f"{name}.key"]
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
