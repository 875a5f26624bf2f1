"""KubernetesPods: the servers in all pods that a label selector picks.

A list replaces everything that was known; a watch keeps it fresh until it ends, which it does after RELIST_S seconds at
the latest; then comes the next list. So a change that a watch has missed, whether the stream broke, went silent or was
told of an old version, is seen with the next list. When the API does not answer, the pods that are known stay: each of
them is looked at anyhow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from router.contract.errors import BadSettings, StoreError
from router.discovery.entry import Entry
from router.discovery.kube_api import KubeApi
from router.discovery.pods import Pod, entries_of

LOG = logging.getLogger("tandem.router")

RELIST_S = 20.0
SPARE_S = 5.0
"""Seconds after which a watch that the server should have ended is ended here."""
BACK_OFF_S = 0.5
"""Doubled with each failure in a row, up to RELIST_S."""


class KubernetesPods:
    """See the module. `follow` keeps it fresh."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._pods: dict[str, tuple[Entry, ...]] = {}
        """By UID; a pod that does not serve has no entries."""
        self._misread: frozenset[str] = frozenset()
        self.bad = False
        """The API does not answer."""

    def entries(self) -> Sequence[Entry]:
        """The servers of all pods that serve."""
        return [entry for entries in self._pods.values() for entry in entries]

    async def follow(self) -> None:
        """List and watch, until cancelled."""
        failures = 0
        try:
            while True:
                try:
                    await self._list_and_watch()
                except Exception as error:  # noqa: BLE001 - the boundary of this task: known pods stay
                    failures += 1
                    if failures == 1:
                        self._tell(error)
                    await asyncio.sleep(min(BACK_OFF_S * 2 ** min(failures - 1, 16), RELIST_S))
                else:
                    failures = 0
        finally:
            await self._api.aclose()

    def _tell(self, error: Exception) -> None:
        if isinstance(error, StoreError):
            LOG.warning("%s", error.message)
        else:
            LOG.error("the pods stay as they were, by a bug", exc_info=error)

    async def _list_and_watch(self) -> None:
        """Raises StoreError when a list or a watch fails, and returns when a watch has ended by itself or for age."""
        try:
            pods, version = await self._api.list_pods()
        except Exception:
            self.bad = True
            raise
        self.bad = False
        self._pods = {pod.metadata.uid: self._read(pod) for pod in pods}
        with suppress(TimeoutError):  # a stream that was cut off without a word stays silent
            async with asyncio.timeout(RELIST_S + SPARE_S):
                async for change, pod in self._api.watch_pods(version, RELIST_S):
                    if change == "DELETED":
                        self._pods.pop(pod.metadata.uid, None)
                    else:
                        self._pods[pod.metadata.uid] = self._read(pod)

    def _read(self, pod: Pod) -> tuple[Entry, ...]:
        try:
            entries = entries_of(pod)
        except BadSettings as error:
            if pod.metadata.uid not in self._misread:
                self._misread |= {pod.metadata.uid}
                LOG.error("%s", error.message)  # noqa: TRY400 - the sentence says it all
            return ()
        return entries
