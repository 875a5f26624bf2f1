"""EngineHosts: on which hosts engines may be, whoever names them.

Whoever can write to the store can register a URL, and gets prompts and the engines' key sent there. So the router talks
to no address that no engine has: link-local ones, among which clouds serve the credentials of a machine (RFC 3927, RFC
4291 2.5.6), and the two other addresses and the names of such services. `engine_hosts` may say more exactly who is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from router.contract.errors import BadSettings

_METADATA_NETS = (ip_network("fd00:ec2::254/128"), ip_network("100.100.100.200/32"))
"""Amazon's over IPv6, and Alibaba Cloud's."""
_METADATA_NAMES = ("metadata.google.internal", "metadata")

_NAME = re.compile(r"\.?[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")

_Network = IPv4Network | IPv6Network
_Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class EngineHosts:
    """Without networks and names: any host but those of link-local and metadata addresses."""

    networks: tuple[_Network, ...] = ()
    names: tuple[str, ...] = ()
    """Lower case: a host's whole name, or with a leading dot every name that ends so."""

    def admit(self, host: str) -> bool:
        """False when no engine is on this host.

        `host` is an IP address or a name. Where only addresses decide it, a name is admitted here, and what it leads to
        is asked of `admit_address` once that is known.
        """
        address = _address_of(host)
        if address is not None:
            return self._admit(address)
        if not self.networks and not self.names:
            return host.rstrip(".").lower() not in _METADATA_NAMES
        return bool(self.networks) or self._names(host)

    def admit_address(self, host: str, address: str) -> bool:
        """False when `host` has led to an IP address where no engine is."""
        found = _address_of(address)
        if found is None:
            return False
        return _is_harmless(found) if self._names(host) else self._admit(found)

    def _admit(self, address: _Address) -> bool:
        if not self.networks and not self.names:
            return _is_harmless(address)
        return any(address in network for network in self.networks)

    def _names(self, host: str) -> bool:
        name = host.rstrip(".").lower()
        return any(name.endswith(one) if one.startswith(".") else name == one for one in self.names)


def read_engine_hosts(listed: tuple[str, ...]) -> EngineHosts:
    """Of CIDRs (10.0.0.0/8), addresses, names (gpu-1), and suffixes of names (.svc.cluster.local).

    Raises:
        BadSettings: one is none of these.
    """
    networks: list[_Network] = []
    names: list[str] = []
    for one in listed:
        try:
            networks.append(ip_network(one))
        except ValueError as error:
            name = one.lower()
            if not _NAME.fullmatch(name) or name.replace(".", "").isdigit():
                raise BadSettings(
                    f"engine_hosts cannot have {one!r}: give networks such as 10.0.0.0/8, names, or .suffixes of names."
                ) from error
            names.append(name)
    return EngineHosts(tuple(networks), tuple(names))


def _is_harmless(address: _Address) -> bool:
    return not (address.is_link_local or any(address in net for net in _METADATA_NETS))


def _address_of(host: str) -> _Address | None:
    """IPv4 inside IPv6 counts as what it is. Short forms of IPv4, which resolvers take, are names until they have."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address
