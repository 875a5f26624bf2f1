"""What prefill's answer hands over to decode, read as far as it must be."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from router.contract.errors import PeerGone, TandemError, TransferFailed
from router.contract.instance import Instance, Mode

_PUSH, _PULL = Mode.PUSH, Mode.PULL  # a member of an Enum is looked up by a Python call, a module's name is not


class _Blocks(msgspec.Struct, gc=False):
    """What decode needs to READ. In stock engines one field that is missing ends the engine, or hangs the request."""

    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: int
    tp_size: int
    remote_block_ids: Annotated[list[Raw], Meta(min_length=1)]


class _Pulled(msgspec.Struct, gc=False):
    kv_transfer_params: Raw


class _Identity(msgspec.Struct, gc=False):
    remote_engine_id: str = ""


class _Pushed(msgspec.Struct, gc=False):
    kv_transfer_params: _Identity | None = None


_PULLED, _PUSHED = msgspec.json.Decoder(_Pulled), msgspec.json.Decoder(_Pushed)
_BLOCKS = msgspec.json.Decoder(_Blocks)


def read_hand_over(body: bytes, prefill: Instance, mode: Mode) -> bytes | TandemError:
    """What prefill's answer hands over, or why the hand-over cannot come about.

    Returns:
        In pull mode the answer's kv_transfer_params as they stand, for decode; in push mode nothing (b""), since
        decode has had its parameters all along and the answer only confirms them.
        PeerGone: the engine at this address is not the one that decode was told of.
        TransferFailed: the answer carries no hand-over, so no KV cache will come.
    """
    if mode is _PUSH and prefill.kv is not None and b'"remote_engine_id":"%b"' % prefill.kv.engine_id.encode() in body:
        return b""  # the usual case, without decoding: inside a JSON string these quotes would be escaped
    try:
        if mode is _PULL:
            handed_over = _PULLED.decode(body).kv_transfer_params
            _BLOCKS.decode(handed_over)
            return bytes(handed_over)
        identity = _PUSHED.decode(body).kv_transfer_params
    except (msgspec.DecodeError, RecursionError):
        return _nothing()
    if identity is None:
        return _nothing()
    if prefill.kv is not None and identity.remote_engine_id != prefill.kv.engine_id:
        return PeerGone("The prefill instance has been restarted since it was chosen; try again.")
    return b""


def _nothing() -> TransferFailed:
    return TransferFailed("The prefill instance answered without a KV cache to hand over; try again.")
