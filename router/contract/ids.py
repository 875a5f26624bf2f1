"""Identities. Every id is minted once, by one owner, and never re-used."""

from __future__ import annotations

import hashlib
from typing import NewType

RequestId = NewType("RequestId", str)
"""One client request, minted by the router: `req-` and 32 hex digits. A client's own id is only echoed."""

TransferId = NewType("TransferId", str)
"""One attempt of one request; the key of its Rendezvous and the `X-Request-Id` of both legs."""

InstanceId = NewType("InstanceId", str)
"""One engine at one address; stays the same over restarts."""

EngineId = NewType("EngineId", str)
"""One start of one engine: an InstanceId joined with its Epoch, so a restart is never mistaken for its past."""

Epoch = NewType("Epoch", int)
"""Grows with each start of an instance; fences everything that a dead start has left behind."""

Attempt = NewType("Attempt", int)
"""1, 2, ... within a request."""


MAX_ATTEMPT_DIGITS = 9
"""An attempt with more digits is none of ours."""


def transfer_id_of(request_id: RequestId, attempt: Attempt) -> TransferId:
    """The id under which this attempt's two legs, registration and WRITEs meet."""
    return TransferId(f"{request_id}.{attempt}")


def request_of(transfer_id: TransferId) -> tuple[RequestId, Attempt]:
    """The request and attempt behind a TransferId; an id that another router minted is its own attempt 1."""
    request_id, _, attempt = transfer_id.rpartition(".")
    if request_id and attempt.isascii() and attempt.isdigit() and len(attempt) <= MAX_ATTEMPT_DIGITS:
        return RequestId(request_id), Attempt(int(attempt))
    return RequestId(transfer_id), Attempt(1)


def engine_id_of(instance_id: InstanceId, epoch: Epoch) -> EngineId:
    """The identity of one start of one instance."""
    return EngineId(f"{instance_id}@{epoch}")


def digest_of(transfer_id: TransferId) -> bytes:
    """A TransferId as 16 bytes, for records of fixed width (blake2b, so two ids do not meet by accident)."""
    return hashlib.blake2b(transfer_id.encode(), digest_size=16).digest()
