"""What commands ask of a router's /admin, with its key from the environment."""

from __future__ import annotations

import os

import httpx

from router.contract.errors import Unauthorized
from router.contract.ids import Epoch, InstanceId

ADMIN_KEY_VARIABLE = "TANDEM_ADMIN_KEY"
Start = tuple[InstanceId, Epoch]


async def ask_fleet(client: httpx.AsyncClient, url: str) -> dict[Start, str]:
    """The URL of each start that the router at `url` knows.

    Raises:
        Unauthorized: it wants another key than ADMIN_KEY_VARIABLE has.
        httpx.TransportError: it does not answer.
        ValueError, KeyError, TypeError: what answers is no router of ours.
    """
    key = os.environ.get(ADMIN_KEY_VARIABLE)
    reply = await client.get(f"{url}/admin/fleet", headers={"authorization": f"Bearer {key}"} if key else {})
    if reply.status_code == httpx.codes.UNAUTHORIZED:
        raise Unauthorized(f"{url} wants the key of its /admin; set {ADMIN_KEY_VARIABLE} to it.")
    instances = reply.json()["instances"]
    return {(InstanceId(one["instance_id"]), Epoch(one["epoch"])): str(one["url"]) for one in instances}
