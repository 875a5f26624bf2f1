"""A leg for vLLM: what must be known of a body, and the body as vLLM gets it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from engine_shim.engine.port import Purpose
from engine_shim.engine.vllm.messages import PURPOSE, SECRET, SEQ_ID
from engine_shim.serve.openai_request import request_id_of, stated_deadline_for_s
from router.contract.errors import BadRequest
from router.contract.wire import Handoff, PrefillHandoff, read_handoff

PARAMS, EXTRA = "kv_transfer_params", "vllm_xargs"
_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_ENCODE = msgspec.json.Encoder().encode


class _Shape(msgspec.Struct):
    """What decides whether one KV cache can be handed over."""

    kv_transfer_params: object = None
    n: object = 1
    best_of: object = None
    use_beam_search: object = False
    prompt: object = ""
    prompt_logprobs: object = None
    echo: object = False
    logprobs: object = None
    stream: object = False


_SHAPE = msgspec.json.Decoder(_Shape)


@dataclass(frozen=True, slots=True)
class Leg:
    """One request for vLLM."""

    request_id: str
    handoff: Handoff | None
    deadline_for_s: float
    fields: dict[str, Raw]

    def body(self, secret: str, seq_id: str) -> bytes:
        """The body with this sequence's hand-over, and with nobody else's.

        Args:
            seq_id: by which the connector knows the sequence.
        """
        fields = self._own_fields()
        if self.handoff is not None:
            purpose = Purpose.HOLD if isinstance(self.handoff, PrefillHandoff) else Purpose.RECEIVE
            fields[PARAMS] = Raw(_ENCODE({SECRET: secret, SEQ_ID: seq_id, PURPOSE: purpose}))
        return _ENCODE(fields)

    def body_alone(self) -> bytes:
        """The body without any hand-over: vLLM computes the prompt itself."""
        return _ENCODE(self._own_fields())

    def _own_fields(self) -> dict[str, Raw]:
        fields = {name: value for name, value in self.fields.items() if name != PARAMS}
        if EXTRA in fields:
            fields[EXTRA] = _without_params(fields[EXTRA])
        return fields


def read_leg(raw: bytes, headers: Mapping[str, str], request_for_s: float) -> Leg:
    """The leg in a body. vLLM judges everything but the hand-over.

    Raises:
        BadRequest: no JSON object, a hand-over that is none, or one of more than one sequence.
    """
    request_id = request_id_of(headers)
    try:
        fields, shape = _FIELDS.decode(raw), _SHAPE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not a JSON object ({error}).") from error
    handoff = read_handoff(shape.kv_transfer_params, request_id)
    if handoff is not None:
        _check_one_sequence(shape, handoff)
    return Leg(request_id, handoff, min(request_for_s, stated_deadline_for_s(headers)), fields)


def _without_params(extra: Raw) -> Raw:
    """`vllm_xargs`, by which vLLM takes its own fields as well, without a hand-over in it."""
    try:
        fields = _FIELDS.decode(extra)
    except msgspec.DecodeError:
        return extra
    return extra if fields.pop(PARAMS, None) is None else Raw(_ENCODE(fields))


def _check_one_sequence(shape: _Shape, handoff: Handoff) -> None:
    several = isinstance(shape.prompt, list) and not all(type(token) is int for token in shape.prompt)
    for name, asked in (
        ("n", shape.n not in (1, None)),
        ("best_of", shape.best_of not in (1, None)),
        ("use_beam_search", bool(shape.use_beam_search)),
        ("prompt", several and not (isinstance(shape.prompt, list) and len(shape.prompt) == 1)),
        ("prompt_logprobs", shape.prompt_logprobs is not None),
        ("echo", bool(shape.echo) and shape.logprobs is not None),
        ("stream", bool(shape.stream) and isinstance(handoff, PrefillHandoff)),
    ):
        if asked:
            raise BadRequest(f"A request whose KV cache is handed over cannot have this {name}.", param=name)
