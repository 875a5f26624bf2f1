"""Which listings of servers the settings ask for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from router.contract.instance import Role
from router.discovery.entry import Entry
from router.discovery.fleet_file import FleetFile
from router.discovery.servers import Listed, Listing
from router.settings import Settings


def listings_of(settings: Settings) -> list[Listing]:
    """All of them; none when only the store tells who is there.

    Raises:
        BadSettings: the fleet file cannot be used.
    """
    listings: list[Listing] = []
    if settings.prefill or settings.decode:
        listings.append(Listed(flagged(settings.prefill, settings.decode)))
    if settings.fleet_file:
        listings.append(FleetFile(Path(settings.fleet_file)))
    return listings


def flagged(prefill: Sequence[str], decode: Sequence[str]) -> tuple[Entry, ...]:
    """An Entry for each URL of `--prefill` and `--decode`.

    Shims say what their role is; a plain server has the role of its list. Where no prefill server is listed, the others
    do everything.
    """
    roles = dict.fromkeys(prefill, Role.PREFILL)
    for url in decode:
        roles.setdefault(url, Role.DECODE if prefill else Role.BOTH)
    return tuple(Entry(url, role) for url, role in roles.items())
