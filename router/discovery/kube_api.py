"""KubeApi: lists and watches pods, over the API server's own HTTP.

    GET /api/v1/namespaces/NS/pods?labelSelector=S           {"metadata": {"resourceVersion"}, "items": [pod, ...]}
    GET ...&watch=true&resourceVersion=V&timeoutSeconds=T    one {"type", "object"} a line, of type ADDED, MODIFIED,
                                                             DELETED or ERROR

The token is read anew for each call, because Kubernetes replaces it while we run.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from router.contract.errors import StoreDown
from router.discovery.pods import Meta, Pod

TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class KubePlace:
    """Where the API server is, and what it knows us by."""

    url: str
    namespace: str
    account: Path
    """Folder with `token` and `ca.crt`; what is not there is not used."""


class _List(msgspec.Struct):
    metadata: Meta
    items: list[Pod]


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


_LISTS, _EVENTS, _PODS = msgspec.json.Decoder(_List), msgspec.json.Decoder(Event), msgspec.json.Decoder(Pod)


class KubeApi:
    """Calls one API server. Every method raises StoreDown when it does not answer as it should."""

    def __init__(self, place: KubePlace, selector: str) -> None:
        self._place = place
        self._selector = selector
        ca = place.account / "ca.crt"
        verify = ssl.create_default_context(cafile=str(ca)) if ca.exists() else place.url.startswith("https:")
        self._client = httpx.AsyncClient(base_url=place.url, timeout=TIMEOUT_S, verify=verify)

    async def aclose(self) -> None:
        """No connection is left."""
        await self._client.aclose()

    async def list_pods(self) -> tuple[list[Pod], str]:
        """All pods that the selector picks, and the version from which to watch."""
        try:
            answer = await self._client.get(self._path, params=self._query(), headers=self._headers())
        except httpx.HTTPError as error:
            raise _down(type(error).__name__) from error
        if answer.status_code != 200:
            raise _down(f"status {answer.status_code}")
        try:
            listed = _LISTS.decode(answer.content)
        except msgspec.DecodeError as error:
            raise _down(str(error)) from error
        return listed.items, listed.metadata.resource_version

    async def watch_pods(self, version: str, for_s: float) -> AsyncIterator[tuple[str, Pod]]:
        """(type, pod) of each change since `version`; the server is asked to end after `for_s` seconds."""
        query = self._query() | {
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(for_s))),
        }
        timeout = httpx.Timeout(TIMEOUT_S, read=None)
        try:
            async with self._client.stream(
                "GET", self._path, params=query, headers=self._headers(), timeout=timeout
            ) as answer:
                if answer.status_code != 200:
                    raise _down(f"status {answer.status_code}")
                async for line in answer.aiter_lines():
                    if line.strip():
                        event = _EVENTS.decode(line)
                        if event.type == "ERROR":
                            raise _down("it ended the watch")  # 410 Gone, most likely: list anew
                        yield event.type, _PODS.decode(event.object)
        except (httpx.HTTPError, msgspec.DecodeError) as error:
            raise _down(type(error).__name__) from error

    @property
    def _path(self) -> str:
        return f"/api/v1/namespaces/{self._place.namespace}/pods"

    def _query(self) -> dict[str, str]:
        return {"labelSelector": self._selector}

    def _headers(self) -> dict[str, str]:
        try:
            token = (self._place.account / "token").read_text("utf-8").strip()
        except OSError:
            return {}
        return {"authorization": f"Bearer {token}"}


def _down(why: str) -> StoreDown:
    return StoreDown(f"The Kubernetes API does not say which pods there are ({why}); those known stay in use.")
