"""Screen: leaves out instances to which no request may go, whoever has named them; the others are served as ever."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

from router.contract.engine_hosts import EngineHosts
from router.contract.engine_url import read_engine_url
from router.contract.errors import BadSettings
from router.contract.ids import InstanceId
from router.contract.instance import Instance
from router.core.fleet import Sighting

LOG = logging.getLogger("tandem.router")

BAD_URL, BAD_HOST, BAD_NAME = REASONS = ("url", "host", "name")
"""Its URL cannot be used; it is where no engine may be (`engine_hosts`); its id cannot stand in a header."""


class Screen:
    """Of one router."""

    def __init__(self, hosts: EngineHosts) -> None:
        self._hosts = hosts
        self._verdicts: dict[str, str] = {}
        """URL -> why it is left out, or empty."""
        self._out: dict[tuple[InstanceId, str], str] = {}

    @property
    def left_out(self) -> Counter[str]:
        """Records that are left out now, by reason."""
        return Counter(self._out.values())

    def passing(self, sightings: Iterable[Sighting]) -> list[Sighting]:
        """Those that may be part of the fleet, in their order. Each of the others is told of once."""
        passing, out = [], {}
        verdicts: dict[str, str] = {}
        for one in sightings:
            url = one.instance.url
            if url not in verdicts:
                verdicts[url] = self._verdicts[url] if url in self._verdicts else self.verdict(url)
            flaw = verdicts[url] or _flaw_of_name(one.instance)
            if flaw:
                out[one.instance.instance_id, url] = flaw
            else:
                passing.append(one)
        for (name, url), flaw in out.items():
            if (name, url) not in self._out:
                LOG.error("instance %r at %r is left out: %s", name, url, _WHY[flaw])
        self._verdicts, self._out = verdicts, out
        return passing

    def verdict(self, url: str) -> str:
        """One of REASONS, or empty for a URL that may be called."""
        try:
            host = read_engine_url(url).host
        except BadSettings:
            return BAD_URL
        return "" if self._hosts.admit(host) else BAD_HOST


_WHY = {
    BAD_URL: "its URL must look like http://host:port or https://host:port; register it anew.",
    BAD_HOST: "no engine may be on that host; engine_hosts says which are allowed.",
    BAD_NAME: "its id must be of printable ASCII characters; register it anew.",
}


def _flaw_of_name(instance: Instance) -> str:
    name = instance.instance_id
    return "" if name and name.isascii() and name.isprintable() else BAD_NAME
