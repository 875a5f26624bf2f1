"""What the shim's process and the two halves of the connector say to each other, over a local socket.

The shim decides everything; vLLM's processes only carry out. The *scheduler half* lives where blocks are given out, and
tells of them; the *worker half* lives where the memory is, owns the NIXL agent, and hands blocks back to the scheduler.

A frame is 4 bytes of length, big-endian, and one msgpack message. Both ends are of one release, in one container.
"""

from __future__ import annotations

import asyncio
import struct
from enum import StrEnum
from typing import TypeVar

import msgspec

from engine_shim.fabric.port import CopyOp
from router.contract.errors import HandshakeFailed, MissingDependency, PeerGone, TandemError, TransferFailed
from router.contract.kv import BlockTable, KVLayout, Region

SOCKET, IDENTITY = "tandem_socket", "tandem_identity"
"""Keys of vLLM's `kv_connector_extra_config`."""
SECRET_VARIABLE = "TANDEM_VLLM_SECRET"
"""Where vLLM's processes find the secret of this start: vLLM logs its arguments."""
SECRET, SEQ_ID, PURPOSE = "tandem_secret", "tandem_seq_id", "tandem_purpose"
"""Keys of a request's `kv_transfer_params`: nothing that lacks the secret is a hand-over."""


class _Message(msgspec.Struct, frozen=True, tag=True):
    """Tagged by its class name."""


class SchedulerHello(_Message, frozen=True):
    """The scheduler half is there."""

    model: str
    """Names that are served, the first one first, comma-separated."""
    max_context_tokens: int
    vocab_size: int
    digest: str
    """Of what must be equal on prefill and decode: vLLM's version, the model's configuration and weights, dtypes."""


class WorkerHello(_Message, frozen=True):
    """The worker half is there, and so is its memory."""

    layout: KVLayout
    region: Region
    page: str
    """How a page is laid out; equal on prefill and decode."""


class Unfit(_Message, frozen=True):
    """This vLLM is set up in a way that the connector cannot serve."""

    reason: str


class SeatsTaken(_Message, frozen=True):
    """Blocks for a RECEIVE sequence are reserved; see `engine.port.Seated`."""

    seq_id: str
    request_id: str
    seats: BlockTable
    first_token: int
    num_tokens: int


class BlocksHeld(_Message, frozen=True):
    """A HOLD sequence has ended and its blocks stay; see `engine.port.Prefilled`."""

    seq_id: str
    request_id: str
    blocks: BlockTable
    num_tokens: int


class SchedulerLoad(_Message, frozen=True):
    """What the scheduler has to do."""

    running_seqs: int
    waiting_seqs: int
    parked_seqs: int
    queued_prompt_tokens: int
    free_blocks: int
    total_blocks: int


FromScheduler = SchedulerHello | SeatsTaken | BlocksHeld | SchedulerLoad


class Release(StrEnum):
    """How blocks go back to vLLM's scheduler."""

    KV_READY = "kv_ready"
    """They hold the wanted KV: the sequence runs."""
    KV_FAILED = "kv_failed"
    """They hold nothing of worth and nobody writes them any more: free them, and end the sequence if it still waits."""
    SENT = "sent"
    """Nobody reads them any more: free them."""


class GiveBack(_Message, frozen=True):
    """These blocks are vLLM's again."""

    request_id: str
    release: Release


class OpenAgent(_Message, frozen=True):
    """Start the NIXL agent on the worker's memory."""

    name: str
    backend: str


class AgentOpened(_Message, frozen=True):
    """It runs, or `error` says why not."""

    metadata: bytes
    error: str


class AddPeer(_Message, frozen=True):
    """See `fabric.writer.AddPeer`."""

    number: int
    metadata: bytes


class PeerAdded(_Message, frozen=True):
    """The answer to AddPeer of this number."""

    number: int
    name: str
    error: str


class DropPeer(_Message, frozen=True):
    """See `fabric.writer.DropPeer`."""

    peer: str


class SendNotice(_Message, frozen=True):
    """See `fabric.writer.SendNotice`."""

    peer: str
    notice: bytes


class Post(_Message, frozen=True):
    """See `fabric.writer.Post`."""

    key: int
    op: CopyOp
    peer: str
    spans: bytes
    """Rows of (src_offset, dst_offset, num_bytes), int64 in the machine's byte order."""
    remote: Region
    tag: bytes


class Expect(_Message, frozen=True):
    """See `fabric.writer.Expect`."""

    count: int


class CloseAgent(_Message, frozen=True):
    """End the writer thread."""


class AgentClosed(_Message, frozen=True):
    """Nothing is written any more."""


class NoticeCame(_Message, frozen=True):
    """See `fabric.writer.NoticeCame`."""

    peer: str
    notice: bytes


class CopyEnded(_Message, frozen=True):
    """See `fabric.writer.CopyEnded`; `code` is empty when every byte arrived."""

    key: int
    code: str
    message: str


class PeerLost(_Message, frozen=True):
    """See `fabric.writer.PeerLost`."""

    peer: str


class FabricBroken(_Message, frozen=True):
    """See `fabric.writer.FabricBroken`."""

    message: str


FromWorker = (
    WorkerHello | Unfit | AgentOpened | PeerAdded | AgentClosed | NoticeCame | CopyEnded | PeerLost | FabricBroken
)
ToWorker = OpenAgent | AddPeer | DropPeer | SendNotice | Post | Expect | CloseAgent | GiveBack
ToShim = FromScheduler | FromWorker
Message = ToShim | ToWorker

T = TypeVar("T")

_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
TO_SHIM: msgspec.msgpack.Decoder[ToShim] = msgspec.msgpack.Decoder(ToShim)
TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_ERRORS: dict[str, type[TandemError]] = {
    kind.code: kind for kind in (PeerGone, TransferFailed, HandshakeFailed, MissingDependency)
}


def frame(message: Message) -> bytes:
    """The message as it goes over the socket."""
    body = _ENCODER.encode(message)
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """The next message, or None when the other end has gone."""
    try:
        length = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))[0]
        return decoder.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def error_of(code: str, message: str) -> TandemError | None:
    """The error that the other process met; None for an empty code."""
    return _ERRORS.get(code, TransferFailed)(message) if code else None
