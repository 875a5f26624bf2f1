"""Which listings of servers the settings ask for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from router.contract.errors import BadSettings
from router.contract.hosts import authority
from router.contract.instance import Role
from router.discovery.entry import Entry, check_entry
from router.discovery.fleet_file import FleetFile
from router.discovery.kube_api import KubeApi, KubePlace
from router.discovery.kubernetes import KubernetesPods
from router.discovery.servers import Listed, Listing
from router.settings import Settings


def listings_of(settings: Settings) -> list[Listing]:
    """All of them; none when only the store tells who is there.

    Raises:
        BadSettings: the fleet file cannot be used, or there is no Kubernetes.
    """
    listings: list[Listing] = []
    if settings.prefill or settings.decode:
        listings.append(Listed(flagged(settings.prefill, settings.decode)))
    if settings.fleet_file:
        listings.append(FleetFile(Path(settings.fleet_file)))
    if settings.kubernetes_selector:
        listings.append(KubernetesPods(KubeApi(kube_place(settings, os.environ), settings.kubernetes_selector)))
    return listings


def kube_place(settings: Settings, env: Mapping[str, str]) -> KubePlace:
    """Where the API server is, by the settings or as Kubernetes tells pods.

    Raises:
        BadSettings: nobody says.
    """
    account = Path(settings.kubernetes_account)
    url, host = settings.kubernetes_api, env.get("KUBERNETES_SERVICE_HOST", "")
    if not url and host:
        url = f"https://{authority(host, env.get('KUBERNETES_SERVICE_PORT', '443'))}"
    try:
        namespace = settings.kubernetes_namespace or (account / "namespace").read_text("utf-8").strip()
    except OSError:
        namespace = ""
    if not url or not namespace:
        raise BadSettings("This is no pod of Kubernetes; set kubernetes_api and kubernetes_namespace.")
    return KubePlace(url, namespace, account)


def flagged(prefill: Sequence[str], decode: Sequence[str]) -> tuple[Entry, ...]:
    """An Entry for each URL of `--prefill` and `--decode`.

    Shims say what their role is; a plain server has the role of its list. Where no prefill server is listed, the others
    do everything.

    Raises:
        BadSettings: a URL is of no form that can be called.
    """
    roles = dict.fromkeys(prefill, Role.PREFILL)
    for url in decode:
        roles.setdefault(url, Role.DECODE if prefill else Role.BOTH)
    entries = tuple(Entry(url, role) for url, role in roles.items())
    for entry in entries:
        check_entry(entry, "engine ")
    return entries
