"""Pods: what a Kubernetes pod says about the servers in it.

    label or annotation   meaning
    tandem/role           prefill, decode or both; without it, the label `role`
    tandem/ports          port of each server, comma-separated: one per data-parallel rank where each rank has a server
                          of its own; without it, the port named http, or the first one
    tandem/scheme         http or https; without it, http
    tandem/contract       tandem, vllm, or auto
    tandem/model, tandem/aliases, tandem/compat    as in a fleet file
    tandem/identity       JSON, as in a fleet file

A pod counts only while it is Ready and not being deleted. Its UID is part of its name: another pod that gets the same
address, or the same name, is another instance.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from router.contract.errors import BadSettings
from router.contract.hosts import authority
from router.contract.instance import Role
from router.discovery.entry import Contract, Entry, Identity, check_entry

PREFIX = "tandem/"
_NAME_CHARS = 100
"""Of a pod's name, which may be longer than ours; the UID tells pods of equal beginnings apart."""
ZONE = "topology.kubernetes.io/zone"


class Meta(msgspec.Struct, rename="camel"):
    """Of an object of the API."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Port(msgspec.Struct, rename="camel"):
    container_port: int = 0
    name: str = ""


class _Container(msgspec.Struct):
    ports: list[_Port] | None = None


class _Spec(msgspec.Struct):
    containers: list[_Container] = msgspec.field(default_factory=list)


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct):
    conditions: list[_Condition] | None = None
    pod_ip: str = msgspec.field(default="", name="podIP")


class Pod(msgspec.Struct):
    """As the API server sends it, as far as it matters."""

    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def serves(self) -> bool:
        """Ready, reachable, and not on its way out."""
        ready = any(one.type == "Ready" and one.status == "True" for one in self.status.conditions or ())
        return ready and bool(self.status.pod_ip) and not self.metadata.deletion_timestamp


def entries_of(pod: Pod) -> tuple[Entry, ...]:
    """The servers of a pod; none while it does not serve.

    Raises:
        BadSettings: it cannot be used as it is written.
    """
    if not pod.serves:
        return ()
    said = {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}
    role = said.get(PREFIX + "role") or said.get("role", "")
    contract, identity = said.get(PREFIX + "contract", "auto"), said.get(PREFIX + "identity", "[]").strip()
    try:
        ports = [int(port) for port in said.get(PREFIX + "ports", "").split(",") if port.strip()] or _declared(pod)
        many = identity if identity.startswith("[") else f"[{identity}]"
        told = msgspec.json.decode(many, type=tuple[Identity, ...])
        made = Entry(
            url="",
            role=Role(role) if role else None,
            contract=Contract(contract),
            model=said.get(PREFIX + "model", ""),
            aliases=tuple(name.strip() for name in said.get(PREFIX + "aliases", "").split(",") if name.strip()),
            identity=told,
            compat=said.get(PREFIX + "compat", ""),
            zone=said.get(ZONE, ""),
        )
    except (ValueError, RecursionError) as error:  # msgspec's errors are of the former
        raise BadSettings(f"The pod {pod.metadata.name} cannot be used: {error}.") from error
    if not ports:
        raise BadSettings(f"The pod {pod.metadata.name} declares no port; give it {PREFIX}ports.")
    scheme = said.get(PREFIX + "scheme", "http").strip()
    entries = tuple(_at(made, pod, port, scheme, several=len(ports) > 1) for port in dict.fromkeys(ports))
    try:
        for entry in entries:
            check_entry(entry, PREFIX)
    except BadSettings as error:
        raise BadSettings(f"The pod {pod.metadata.name} cannot be used: {error.message}") from error
    return entries


def _declared(pod: Pod) -> list[int]:
    ports = [port for container in pod.spec.containers for port in container.ports or ()]
    named = [port.container_port for port in ports if port.name == "http"]
    return (named or [port.container_port for port in ports])[:1]


def _at(made: Entry, pod: Pod, port: int, scheme: str, *, several: bool) -> Entry:
    ip = pod.status.pod_ip
    name = f"{pod.metadata.name[:_NAME_CHARS]}/{pod.metadata.uid[:8]}"
    return replace(made, url=f"{scheme}://{authority(ip, port)}", name=f"{name}:{port}" if several else name)
