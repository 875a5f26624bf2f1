"""The request of a leg as bytes: head, hand-over parameters, body."""

from __future__ import annotations

import msgspec

from router.contract import wire
from router.contract.ids import EngineId, TransferId
from router.contract.instance import KVIdentity
from router.contract.wire import NO_WAITS, Waits
from router.legs.pool import LegPool

_ENCODE = msgspec.json.Encoder().encode
_HOLE = TransferId("0" * 32)


class _Form:
    """A JSON object with one value left open; filling it in costs a join instead of an encoding."""

    __slots__ = ("_parts",)

    def __init__(self, params: dict[str, object]) -> None:
        self._parts = _ENCODE(params).split(_HOLE.encode())

    def fill(self, transfer_id: bytes) -> bytes:
        """The object for this attempt. An id of ours needs no escaping."""
        return transfer_id.join(self._parts)


_PREFILL = _Form(wire.prefill_params(_HOLE))
_PUSH: dict[EngineId, tuple[KVIdentity, _Form]] = {}
_MAX_FORMS = 4096


def prefill_params_json(transfer_id: bytes) -> bytes:
    """`kv_transfer_params` of a prefill leg."""
    return _PREFILL.fill(transfer_id)


def push_params_json(transfer_id: bytes, prefill: KVIdentity) -> bytes:
    """`kv_transfer_params` of a decode leg whose KV cache this prefill engine pushes."""
    known = _PUSH.get(prefill.engine_id)
    # Identity first: the fleet keeps one object per registration, and comparing all fields costs more than encoding.
    if known is None or (known[0] is not prefill and known[0] != prefill):
        if len(_PUSH) >= _MAX_FORMS:
            _PUSH.clear()
        known = _PUSH[prefill.engine_id] = (prefill, _Form(wire.push_params(_HOLE, prefill)))
    return known[1].fill(transfer_id)


def with_keeper(params: bytes, keeper: KVIdentity) -> bytes:
    """A prefill leg's `params` that also name an engine which may keep KV of the prompt's beginning."""
    return params[: params.rindex(b"}")] + b"," + _ENCODE(wire.keeper_params(keeper))[1:]


def with_waits(params: bytes, waits: Waits) -> bytes:
    """A decode leg's `params`, a JSON object with members, that also say how long decode may wait."""
    if waits is NO_WAITS:
        return params
    more = _ENCODE(wire.waits_params(waits))
    return params[: params.rindex(b"}")] + b"," + more[1:] if len(more) > 2 else params


def leg_request(pool: LegPool, path: bytes, transfer_id: bytes, left_s: float, trace: bytes, body: bytes) -> bytes:
    """The whole HTTP request of a leg.

    Args:
        path: the endpoint, the same on both legs.
        transfer_id: in ASCII, as the X-Request-Id of both legs.
        left_s: seconds that are left of the request's deadline.
        trace: header lines that go through as the client sent them, each ending in CRLF.
    """
    return (
        b"POST %b HTTP/1.1\r\n%bcontent-type: application/json\r\naccept: */*\r\n"
        b"x-request-id: %b\r\nx-request-deadline-ms: %d\r\n%bcontent-length: %d\r\n\r\n%b"
    ) % (path, pool.own_lines, transfer_id, max(1, left_s * 1000), trace, len(body), body)
