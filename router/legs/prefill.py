"""The prefill leg: its body, and its answer, of which only the hand-over counts.

Prefill computes the prompt and one token that nobody sees; whatever would make it do more, or refuse a request of one
token, is set or left out. Everything else goes through untouched, known or not, because it may change the prompt.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from router.contract.errors import Blame, LegBroken, PeerGone, TandemError, TransferFailed
from router.contract.instance import Instance, Mode
from router.legs.connection import Connection
from router.legs.leg import Leg

_PUSH, _PULL = Mode.PUSH, Mode.PULL  # a member of an Enum is looked up by a Python call, a module's name is not

MAX_ANSWER_BYTES = 4 * 1024 * 1024

_ABSENT = frozenset(
    {
        "stream_options",  # refused without stream
        "min_tokens",  # refused above max_tokens
        "min_completion_tokens",
        "n",  # one sequence is handed over
        "best_of",
        "use_beam_search",
        "logprobs",  # the token is thrown away
        "top_logprobs",
        "prompt_logprobs",
        "echo",
    }
)
_ONE, _FALSE = Raw(b"1"), Raw(b"false")
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_ENCODER = msgspec.json.Encoder()


def prefill_body(body: bytes, params: bytes) -> bytes:
    """The client's JSON object as prefill gets it, with `params` as its kv_transfer_params.

    Raises:
        msgspec.DecodeError: `body` is not a JSON object; intake has made sure that it is.
    """
    fields = _FIELDS.decode(body)
    if not _ABSENT.isdisjoint(fields):
        for name in _ABSENT:
            fields.pop(name, None)
    fields["max_tokens"] = _ONE
    if "max_completion_tokens" in fields:
        fields["max_completion_tokens"] = _ONE
    fields["stream"] = _FALSE
    fields["kv_transfer_params"] = Raw(params)
    return _ENCODER.encode(fields)


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


class PrefillLeg(Leg):
    """Collects the whole answer, then reports it once."""

    side = Blame.PREFILL
    _pieces: list[bytes] | None = None
    _size = 0

    def on_answer(self, connection: Connection, body: bytes, ended: bool) -> None:
        """Report the answer once it is whole."""
        if ended:
            self.connection = None
            self.ended = True
            if self._pieces is not None:
                body = b"".join((*self._pieces, body))
            self.owner.on_prefill_answer(connection.status, connection.headers, body)
            return
        if self._pieces is None:
            self._pieces = []
        self._pieces.append(body)
        self._size += len(body)
        if self._size > MAX_ANSWER_BYTES:
            self.cancel()
            self.owner.on_leg_failed(
                self, LegBroken(f"The prefill instance answered more than {MAX_ANSWER_BYTES} bytes.", side=self.side)
            )
