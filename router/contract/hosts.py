"""Hosts: who can call an address that a process listens on, how it stands in a URL, and what a URL says of it."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_address
from urllib.parse import SplitResult, urlsplit


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


def split_http_url(url: str) -> SplitResult:
    """The parts of an http or https URL; its host, and its port where there is one, can be read.

    Raises:
        ValueError: another URL, half a pair of brackets, or a port that is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(url)
    _ = parts.port  # raises ValueError for what is no port
    return parts
