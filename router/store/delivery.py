"""Batches to Redis in one round trip, and what became of each."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from router.contract.errors import StoreDown
from router.store.batch import Batch
from router.store.connection import StoreClient, reconnect, store_errors
from router.store.scripts import read_join_script

KEEP_S = 3600
"""A closed request stays readable for so long."""
GRACE_S = 60
"""An open one stays for so long after its deadline."""
STORY_LINES = 64

POST = read_join_script("post")

_SERVER_STATES = re.compile(r"\b(OOM|READONLY|MISCONF|NOREPLICAS|MASTERDOWN|LOADING|BUSY|TRYAGAIN|CLUSTERDOWN)\b")


@dataclass(frozen=True, slots=True)
class Written:
    """Redis has the batch."""

    fenced: int
    """Arrivals in it that were refused because a newer attempt had replaced theirs."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Redis will never take the batch."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unwritten:
    """Redis could not take the batch this time."""

    reason: str
    again_at_once: bool
    """True when the reason is already gone."""


Delivery = Written | Refused | Unwritten


def post_arguments(writer: str, batch: Batch) -> tuple[str | bytes | int, ...]:
    """ARGV of `lua/post.lua` for this batch."""
    return writer, repr(time.monotonic()), KEEP_S * 1000, GRACE_S * 1000, STORY_LINES, batch.groups


async def deliver(redis: StoreClient, writer: str, batches: list[Batch]) -> list[Delivery]:
    """What became of each batch, in order. Raises StoreDown when that is unknown or Redis is out of reach."""
    pipeline = redis.pipeline(transaction=False)
    for batch in batches:
        # Not `evalsha`, which redis-py blocks in a cluster's pipeline although all keys of a batch lie on one node.
        pipeline.execute_command("EVALSHA", POST.digest, len(batch.keys), *batch.keys, *post_arguments(writer, batch))
    with store_errors():
        replies = await pipeline.execute(raise_on_error=False)
        if any(isinstance(reply, NoScriptError) for reply in replies):
            await redis.script_load(POST.text)
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            # A demoted primary keeps its connections; only a new one finds the server that took over.
            await reconnect(redis)
    return [_judge(reply) for reply in replies]


def _judge(reply: object) -> Delivery:
    if isinstance(reply, NoScriptError):
        return Unwritten(str(reply), again_at_once=True)
    if isinstance(reply, ResponseError):
        reason = str(reply)
        its_own_fault = type(reply) is ResponseError and "user_script" in reason and not _SERVER_STATES.search(reason)
        return Refused(reason) if its_own_fault else Unwritten(reason, again_at_once=False)
    if isinstance(reply, Exception):
        # A cluster's pipeline answers for each node; one may be out of reach while others are not.
        return Unwritten(str(reply) or type(reply).__name__, again_at_once=False)
    if isinstance(reply, list):
        return Written(reply[0])
    raise StoreDown(f"The store answers {type(reply).__name__} where a list is due; check what listens at its address.")
