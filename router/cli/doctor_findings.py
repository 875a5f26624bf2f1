"""What `tandem doctor` has found out, and how it says so."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How bad a Finding is."""

    GOOD = "ok"
    NOTE = "note"
    """Something that could not be examined here."""
    WARNING = "warn"
    """Requests are served; something should be changed."""
    FAILURE = "FAIL"
    """Requests fail, or would; exit status 1."""


class Finding(msgspec.Struct, frozen=True):
    """One fact about one part of the deployment."""

    level: Level
    subject: str
    """`store`, `router`, an instance id, or `prefill -> decode`."""
    sentence: str
    """What is the case and, unless it is good, what to do."""


class Run(msgspec.Struct, frozen=True):
    """One WRITE of a pair's self-test."""

    num_bytes: int
    num_spans: int
    seconds: float
    wrong_bytes: int

    @property
    def text(self) -> str:
        """Size, microseconds, and the rate in gigabytes (10^9 bytes) per second."""
        return f"{_size(self.num_bytes)} {self.seconds * 1e6:.0f} us {self.num_bytes / self.seconds / 1e9:.2f} GB/s"


class PairVerdict(msgspec.Struct, frozen=True):
    """What a prefill shim answers to a self-test."""

    handshake_s: float
    runs: tuple[Run, ...]


class Pair(msgspec.Struct, frozen=True):
    """A pair that has been tried."""

    prefill: str
    decode: str
    verdict: PairVerdict | None
    """None when it could not be carried out."""


class Report(msgspec.Struct):
    """Everything found so far."""

    findings: list[Finding] = []
    pairs: list[Pair] = []

    @property
    def is_well(self) -> bool:
        """Nothing fails."""
        return all(finding.level is not Level.FAILURE for finding in self.findings)

    def good(self, subject: str, sentence: str) -> None:
        """One more fact that is as it should be."""
        self.findings.append(Finding(Level.GOOD, subject, sentence))

    def note(self, subject: str, sentence: str) -> None:
        """One more fact that nobody need do anything about."""
        self.findings.append(Finding(Level.NOTE, subject, sentence))

    def warn(self, subject: str, sentence: str) -> None:
        """One more fact that should be changed."""
        self.findings.append(Finding(Level.WARNING, subject, sentence))

    def fail(self, subject: str, sentence: str) -> None:
        """One more fact that makes requests fail."""
        self.findings.append(Finding(Level.FAILURE, subject, sentence))

    def text(self) -> str:
        """One line for each Finding."""
        return "\n".join(_lines(self.findings))

    def json(self) -> str:
        """The same for programs."""
        told = {"well": self.is_well, "findings": self.findings, "pairs": self.pairs}
        return msgspec.json.format(msgspec.json.encode(told)).decode()


def _lines(findings: list[Finding]) -> Iterable[str]:
    width = max((len(finding.subject) for finding in findings), default=0)
    for finding in findings:
        yield f"{finding.level:<4}  {finding.subject:<{width}}  {finding.sentence}"


def _size(num_bytes: int) -> str:
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.3g} {unit}"
    return f"{num_bytes} B"
