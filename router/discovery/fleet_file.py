"""The fleet file: a YAML, JSON or TOML list of servers, read again when it changes.

    engines:
      - url: http://10.0.0.7:8000
        role: prefill
        identity: {engine_id: p0, host: 10.0.0.7, port: 5600, mode: push}
      - {url: "http://10.0.0.8:8000", role: decode, zone: a, labels: {gpu: h200}}

A file that cannot be used changes nothing: the last good one stays in force, and a log line and a gauge say so.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

import msgspec

from router.contract.errors import BadSettings, DeploymentError
from router.discovery.entry import Entry, Identity, check_entry, check_unique
from router.sources import read_table
from router.watched import WatchedFiles

LOG = logging.getLogger("tandem.router")

_TOP = ("engines",)
_ENTRY = tuple(one.name for one in fields(Entry))
_IDENTITY = tuple(one.name for one in fields(Identity))


class FleetFile:
    """The servers in one file, as it is now or last was good."""

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            BadSettings: it cannot be used.
        """
        self._path = path
        self._files = WatchedFiles((path,))
        self._entries = read_fleet_file(path)
        self.bad = False
        """The file as it is now cannot be used."""

    def entries(self) -> Sequence[Entry]:
        """All of them; looks at the file's time, and reads it when that has changed."""
        if self._files.changed():
            try:
                self._entries = read_fleet_file(self._path)
            except DeploymentError as error:
                self.bad = True
                LOG.error("the fleet stays as it was: %s", error.message)  # noqa: TRY400 - the sentence says it all
            except Exception:  # the boundary of whoever asks: no file ends a router
                self.bad = True
                LOG.exception("the fleet stays as it was, by a bug in reading %s", self._path)
            else:
                self.bad = False
                LOG.info("the fleet file %s has been read again: %d engines", self._path, len(self._entries))
        return self._entries

    async def follow(self) -> None:
        """Whoever asks for entries looks at the file."""


def read_fleet_file(path: Path) -> tuple[Entry, ...]:
    """The servers that the file lists, in its order.

    Raises:
        BadSettings, MissingDependency: it cannot be read, or something in it is unknown, ill-typed or contradictory.
    """
    table = read_table(path, "fleet file")
    _check_names(table, _TOP, "")
    listed = table.get("engines")
    if not isinstance(listed, list):
        raise BadSettings(f"The fleet file {path} must have a list `engines`.")
    try:
        entries = tuple(_entry(one, f"engines[{number}]") for number, one in enumerate(listed))
        check_unique([entry.url for entry in entries], "url")
        check_unique([entry.name for entry in entries if entry.name], "name")
    except BadSettings as error:
        raise BadSettings(f"The fleet file {path} is not valid: {error.message}") from error
    return entries


def _entry(given: object, where: str) -> Entry:
    if not isinstance(given, dict):
        raise BadSettings(f"{where} must be a table with at least a url.")
    _check_names(given, _ENTRY, f"{where}.")
    made = dict(given)
    made["url"] = str(given.get("url", "")).rstrip("/")
    identity = given.get("identity", [])
    made["identity"] = identity if isinstance(identity, list) else [identity]
    for one in made["identity"]:
        if isinstance(one, dict):
            _check_names(one, _IDENTITY, f"{where}.identity.")
    labels = given.get("labels", {})
    if isinstance(labels, dict):
        made["labels"] = [[name, str(value)] for name, value in labels.items()]
    try:
        entry = msgspec.convert(made, Entry)
    except msgspec.ValidationError as error:
        raise BadSettings(f"{where}: {str(error).replace('$.', '')}.") from error
    check_entry(entry, f"{where}.")
    return entry


def _check_names(given: Iterable[object], known: Sequence[str], where: str) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}."
            raise BadSettings(f"There is no {where}{name} in a fleet file{hint}")
