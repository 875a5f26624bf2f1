"""Hosts: who can call an address that a process listens on, and how it stands in a URL."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_address


class Reach(StrEnum):
    """From where an address can be called."""

    HERE = "here"
    """Loopback: from this machine alone."""
    THERE = "there"
    """One address of one machine; names but localhost count as such."""
    EVERYWHERE = "everywhere"
    """The wildcard: good to listen on, not to be called."""


def reach_of(host: str) -> Reach:
    """The reach of an IP address or a name."""
    try:
        address = ip_address(host)
    except ValueError:
        return Reach.HERE if host == "localhost" else Reach.THERE
    if address.is_loopback:
        return Reach.HERE
    return Reach.EVERYWHERE if address.is_unspecified else Reach.THERE


def authority(host: str, port: int | str) -> str:
    """Host and port as they stand in a URL; IPv6 addresses in brackets (RFC 3986, 3.2.2)."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
