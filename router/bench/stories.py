"""What a set-up's ledger tells of its requests on this machine: how long decode waited for KV that was computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from router.contract.ids import RequestId
from router.contract.ledger import StoryLine
from router.store import keys
from router.store.connection import connect
from router.store.story import read_story

Story = tuple[StoryLine, ...]
COMPUTED, KV_READY = "computed", "kv_ready"


async def read_stories(store_url: str, namespace: str) -> dict[str, Story]:
    """The Stories of all requests in the store, by the names of their keys. Raises StoreDown."""
    redis = connect(store_url)
    pattern = keys.ledger_request(namespace, 0, RequestId("*")).replace("ledger:0", "ledger:*")
    try:
        # `connect` leaves replies undecoded.
        found = [key async for key in redis.scan_iter(match=pattern, count=1000)]
        return {key.decode(): read_story(cast("dict[bytes, bytes]", await redis.hgetall(key))) for key in found}
    finally:
        await redis.aclose()


def hand_over_ms(story: Story) -> float | None:
    """From prefill's last KV to decode's KVReady, on the clock of this machine; None where the Story lacks either."""
    at_s = {line.stage: line.posted_s for line in story if line.stage in (COMPUTED, KV_READY)}
    return (at_s[KV_READY] - at_s[COMPUTED]) * 1000 if len(at_s) == 2 else None


def in_order(stories: Iterable[Story]) -> list[Story]:
    """The Stories that have a beginning, oldest first."""
    return sorted((story for story in stories if story), key=lambda story: story[0].posted_s)


def typical(stories: Sequence[Story]) -> Story:
    """The Story that took the median time from its first line to its last; empty where there is none."""
    by_length = sorted(stories, key=lambda story: story[-1].posted_s - story[0].posted_s)
    return by_length[len(by_length) // 2] if by_length else ()
