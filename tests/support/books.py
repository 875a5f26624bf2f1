"""Books and a ledger that keep what they are told."""

from __future__ import annotations

from router.contract.ledger import Entry
from router.core.record import Record
from router.core.tail import Tail


class KeptBooks:
    """See router.driver.ports.Books."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.retries: list[str] = []
        self.passed: Tail | None = None
        """Of the last record."""

    def fold(self, record: Record, passed: Tail | None = None) -> None:
        self.records.append(record)
        self.passed = passed

    def count_retry(self, reason: str) -> None:
        self.retries.append(reason)


class KeptLedger:
    """See router.driver.ports.LedgerPort."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def post(self, entry: Entry) -> None:
        self.entries.append(entry)
