"""`kv_transfer_params`: what the router tells an engine about the hand-over, in the words of vLLM's contract.

Version history of the codec
    1   vLLM 0.32/0.33 field names, plus `transfer_id` (vLLM main): the key under which the two legs meet;
        plus, on decode, `registration_timeout_ms` and `kv_wait_timeout_ms`: waits shorter than decode's own;
        plus, on prefill, `keeper_engine_id`, `keeper_host` and `keeper_port`: who may keep KV of the prompt's beginning

Unknown fields are ignored, missing or ill-typed ones are a BadRequest: in stock engines a missing field kills the
engine, so nothing a client sends is ever passed on, and a shim checks again what the router sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import msgspec
from msgspec import Raw

from router.contract.errors import BadRequest
from router.contract.ids import EngineId, TransferId
from router.contract.instance import KVIdentity, Mode
from router.contract.rendezvous import PrefillDone

VERSION = 1
REQUEST_ID_HEADER = "X-Request-Id"
DEADLINE_HEADER = "X-Request-Deadline-Ms"
"""Milliseconds that are left of the request's total deadline when the leg is sent."""

MAX_ID_CHARS = 128
PARAMS = "kv_transfer_params"
HANDOVERS = (PARAMS, "ec_transfer_params")
"""Fields of a body by which an engine is told of KV cache, or of an encoder's, that is somewhere else."""
EXTRA = "vllm_xargs"
"""vLLM's own way for more fields: an object whose members it treats like those of HANDOVERS by the same names."""

_MEMBERS = msgspec.json.Decoder(dict[str, Raw])


@dataclass(frozen=True, slots=True)
class Keeper:
    """A decode engine that probably keeps KV of the prompt's beginning, from an earlier turn of the conversation."""

    engine_id: EngineId
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PrefillHandoff:
    """This leg computes the prompt and pins its KV for whoever registers under `transfer_id`."""

    transfer_id: TransferId
    keeper: Keeper | None = None


@dataclass(frozen=True, slots=True)
class Waits:
    """How long a decode leg may wait, seconds, where that is shorter than what its shim allows."""

    registration_s: float = inf
    """From the leg's arrival to its Registration: for seats."""
    kv_s: float = inf
    """From there to KVReady."""


NO_WAITS = Waits()
"""As long as the shim allows."""


@dataclass(frozen=True, slots=True)
class DecodeHandoff:
    """This leg reserves seats, registers them with that prefill engine, and decodes once the KV has landed."""

    transfer_id: TransferId
    mode: Mode
    prefill_engine_id: EngineId
    side_channel_host: str
    side_channel_port: int
    waits: Waits = NO_WAITS


Handoff = PrefillHandoff | DecodeHandoff


def drop_handovers(fields: dict[str, Raw]) -> None:
    """A body's `fields` hold no hand-over any more, neither by name nor among vLLM's extra arguments."""
    for name in HANDOVERS:
        fields.pop(name, None)
    extra = bytes(fields.get(EXTRA, b""))
    if extra.startswith(b"{"):
        members = _MEMBERS.decode(extra)
        if not members.keys().isdisjoint(HANDOVERS):
            fields[EXTRA] = Raw(msgspec.json.encode({name: members[name] for name in members if name not in HANDOVERS}))


def prefill_params(transfer_id: TransferId) -> dict[str, object]:
    """The object for a prefill leg (the same in push and pull mode)."""
    return {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
        "transfer_id": transfer_id,
    }


def keeper_params(keeper: KVIdentity) -> dict[str, object]:
    """What a prefill leg's object says besides where somebody may keep KV of the prompt's beginning."""
    return {
        "keeper_engine_id": keeper.engine_id,
        "keeper_host": keeper.side_channel_host,
        "keeper_port": keeper.side_channel_port,
    }


def push_params(transfer_id: TransferId, prefill: KVIdentity) -> dict[str, object]:
    """The object for a decode leg in push mode, made from the fleet before prefill has answered."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": prefill.engine_id,
        "remote_host": prefill.side_channel_host,
        "remote_port": prefill.side_channel_port,
        "tp_size": prefill.tp_size,
        "pp_size": prefill.pp_size,
        "remote_request_id": transfer_id,
        "transfer_id": transfer_id,
    }


def waits_params(waits: Waits) -> dict[str, object]:
    """What a decode leg's object says besides, in either mode; empty where the shim's own waits hold."""
    named = {"registration_timeout_ms": waits.registration_s, "kv_wait_timeout_ms": waits.kv_s}
    return {name: max(1, int(wait_s * 1000)) for name, wait_s in named.items() if wait_s < inf}


def answer_params(done: PrefillDone, prefill: KVIdentity) -> dict[str, object]:
    """What prefill answers; in pull mode it is passed on to decode unchanged."""
    held: dict[str, object] = {"remote_block_ids": [list(done.blocks)], "remote_num_tokens": done.num_tokens}
    return push_params(done.transfer_id, prefill) | held


def read_handoff(params: object, request_id: str) -> Handoff | None:
    """The Handoff in a request's `kv_transfer_params`, or None when it asks for none.

    Args:
        params: the decoded value of the field, or None when the body has none.
        request_id: the X-Request-Id header; it is the TransferId where the object carries none (vLLM 0.32/0.33).
    Raises:
        BadRequest: a needed field is missing or ill-typed, or both directions are asked for at once.
    """
    if params is None:
        return None
    if not isinstance(params, dict):
        raise BadRequest("kv_transfer_params must be an object.", param="kv_transfer_params")
    sends, receives = params.get("do_remote_decode") is True, params.get("do_remote_prefill") is True
    if not sends and not receives:
        return None
    if sends and receives:
        raise BadRequest(
            "kv_transfer_params asks for do_remote_decode and do_remote_prefill at once; set exactly one of them.",
            param="kv_transfer_params",
        )
    transfer_id = TransferId(_text(params, "transfer_id", request_id or params.get("remote_request_id")))
    if sends:
        return PrefillHandoff(transfer_id, _keeper(params))
    return DecodeHandoff(
        transfer_id,
        Mode.PULL if params.get("remote_block_ids") else Mode.PUSH,
        EngineId(_text(params, "remote_engine_id", None)),
        _text(params, "remote_host", None),
        _port(params, "remote_port"),
        Waits(_wait_s(params, "registration_timeout_ms"), _wait_s(params, "kv_wait_timeout_ms")),
    )


# Any: decoded JSON; each field is checked where it is read.
def _text(params: dict[str, Any], name: str, default: object) -> str:
    value = params.get(name) or default
    if not isinstance(value, str) or not value or len(value) > MAX_ID_CHARS:
        raise BadRequest(
            f"kv_transfer_params.{name} must be a string of 1 to {MAX_ID_CHARS} characters.", param="kv_transfer_params"
        )
    return value


def _keeper(params: dict[str, Any]) -> Keeper | None:
    if params.get("keeper_engine_id") is None:
        return None
    engine_id = EngineId(_text(params, "keeper_engine_id", None))
    return Keeper(engine_id, _text(params, "keeper_host", None), _port(params, "keeper_port"))


def _port(params: dict[str, Any], name: str) -> int:
    value = params.get(name)
    if type(value) is not int or not 0 < value < 65536:
        raise BadRequest(f"kv_transfer_params.{name} must be a port number.", param="kv_transfer_params")
    return value


def _wait_s(params: dict[str, Any], name: str) -> float:
    value = params.get(name)
    if value is None:
        return inf
    if type(value) is not int or value < 1:
        raise BadRequest(
            f"kv_transfer_params.{name} must be a positive number of milliseconds.", param="kv_transfer_params"
        )
    return value / 1000
