"""Who sends and who receives a notice, for tests that take the channel's place."""

from __future__ import annotations

from router.contract.ids import EngineId
from router.contract.notices import Cancelled, Left, Moved, Notice, Queued, Refused, Registered, read_notice
from router.contract.seal import Seal

NOBODY = EngineId("nobody@1")


def sender_of(notice: Notice) -> EngineId:
    """The engine that says it."""
    if isinstance(notice, Left):
        return notice.engine_id
    to_prefill = isinstance(notice, Registered | Queued | Moved | Cancelled)
    return notice.decode_engine_id if to_prefill else notice.prefill_engine_id


def receiver_of(notice: Notice) -> EngineId:
    """The engine that it is meant for."""
    if isinstance(notice, Left):
        return NOBODY
    to_prefill = isinstance(notice, Registered | Queued | Moved | Cancelled)
    return notice.prefill_engine_id if to_prefill else notice.decode_engine_id


def delivered(raw: bytes, notice: Notice, seal: Seal) -> Notice | Refused:
    """What the right receiver reads when the right sender sends these bytes."""
    return read_notice(raw, seal, sender=sender_of(notice), receiver=receiver_of(notice))
