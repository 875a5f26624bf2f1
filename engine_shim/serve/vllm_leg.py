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
from router.contract.wire import PARAMS, Handoff, PrefillHandoff, drop_handovers, read_handoff

_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_ENCODE = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Leg:
    """One request for vLLM."""

    request_id: str
    handoff: Handoff | None
    deadline_for_s: float
    fields: dict[str, Raw]
    """Of the body, without any hand-over."""

    def body(self, secret: str, seq_id: str) -> bytes:
        """The body with this sequence's hand-over, and with nobody else's.

        Args:
            seq_id: by which the connector knows the sequence.
        """
        if self.handoff is None:
            return self.body_alone()
        purpose = Purpose.HOLD if isinstance(self.handoff, PrefillHandoff) else Purpose.RECEIVE
        ours = {SECRET: secret, SEQ_ID: seq_id, PURPOSE: purpose}
        return _ENCODE({**self.fields, PARAMS: ours})

    def body_alone(self) -> bytes:
        """The body without any hand-over: vLLM computes the prompt itself."""
        return _ENCODE(self.fields)


def read_leg(raw: bytes, headers: Mapping[str, str], request_for_s: float) -> Leg:
    """The leg in a body. vLLM judges everything but the hand-over.

    Raises:
        BadRequest: no JSON object, a hand-over that is none, or one of more than one sequence.
    """
    request_id = request_id_of(headers)
    try:
        fields = _FIELDS.decode(raw)
        params = _value(fields, PARAMS)
        drop_handovers(fields)
        handoff = read_handoff(params, request_id)
        if handoff is not None:
            _check_one_sequence(fields, handoff)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"The body is not a JSON object ({error}).") from error
    return Leg(request_id, handoff, min(request_for_s, stated_deadline_for_s(headers)), fields)


def _value(fields: Mapping[str, Raw], name: str) -> object:
    """The decoded value of a field; None when there is none."""
    return msgspec.json.decode(fields[name]) if name in fields else None


def _check_one_sequence(fields: Mapping[str, Raw], handoff: Handoff) -> None:
    prompt = _value(fields, "prompt")
    several = isinstance(prompt, list) and len(prompt) != 1 and not all(type(token) is int for token in prompt)
    for name, asked in (
        ("n", _value(fields, "n") not in (1, None)),
        ("best_of", _value(fields, "best_of") not in (1, None)),
        ("use_beam_search", bool(_value(fields, "use_beam_search"))),
        ("prompt", several),
        ("prompt_logprobs", _value(fields, "prompt_logprobs") is not None),
        ("echo", bool(_value(fields, "echo")) and _value(fields, "logprobs") is not None),
        ("stream", bool(_value(fields, "stream")) and isinstance(handoff, PrefillHandoff)),
    ):
        if asked:
            raise BadRequest(f"A request whose KV cache is handed over cannot have this {name}.", param=name)
