"""Bytes -> Intake: the body is validated as JSON, and of its fields only those are read that decide its way."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from router.contract.errors import BadRequest
from router.contract.wire import EXTRA, HANDOVERS, drop_handovers
from router.core.intake import MODEL_OPTIONAL, SPLIT, Endpoint, Intake

_NONE = Raw(b"")


_FIELDS = msgspec.json.Decoder(dict[str, Raw])
_TEXT = msgspec.json.Decoder(str)

_OURS = (*HANDOVERS, EXTRA, "request_id")
"""Fields that a client must not set, or not all of: in stock engines they reach the scheduler unchecked."""

_SESSION = ("session_id", "prompt_cache_key", "user")
"""What names a session, the most exact first."""

_PREVIOUS = "previous_response_id"

_RARE = frozenset((*_OURS, *_SESSION, "n", "best_of", "use_beam_search", "prompt_logprobs", "echo", _PREVIOUS))
"""Beside model, stream and prompt, the fields that decide how a request is carried out; most requests have none."""

_OFF = frozenset({b"", b"null", b"false"})
_ONE = frozenset({b"", b"null", b"1"})


def read_intake(endpoint: Endpoint, body: bytes, trace: bytes = b"", client_id: str = "") -> Intake:
    """The Intake of a request body.

    Raises:
        BadRequest: the body is not one JSON object, or its model is not a non-empty string.
    """
    try:
        if not body.isascii():
            body.decode("utf-8")  # what nobody reads here is not looked at by the decoder, but will be by engines
        fields = _FIELDS.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body must be a JSON object with a model: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply.") from error
    model = _model(fields)
    if not model and endpoint not in MODEL_OPTIONAL:
        raise BadRequest("Name a model in the body; GET /v1/models lists them.", param="model")
    prompt = fields.get("prompt", _NONE)
    whole, session, previous = "" if endpoint in SPLIT else endpoint.value, _NONE, _NONE
    if prompt is _NONE:
        prompt = fields.get("messages", _NONE)
    elif not whole and _is_several(bytes(prompt)):
        whole = "several_prompts"
    if not _RARE.isdisjoint(fields):
        if not fields.keys().isdisjoint(_OURS):
            drop_handovers(fields)
            fields.pop("request_id", None)
            body = msgspec.json.encode(fields)
        session = next((fields[name] for name in _SESSION if name in fields), _NONE)
        whole = whole or _why_whole(fields)
        if endpoint is Endpoint.RESPONSES and bytes(fields.get(_PREVIOUS, _NONE)) != b"null":
            previous = fields.get(_PREVIOUS, _NONE)
    stream = bytes(fields.get("stream", _NONE)) == b"true"
    intake = Intake(endpoint, body, model, stream, whole, trace, client_id, session, prompt, fields=fields)
    if previous is not _NONE:
        intake.previous = previous
    return intake


def _model(fields: Mapping[str, Raw]) -> str:
    """The model's name, or empty. Types of other fields are the engine's to judge."""
    if "model" not in fields:
        return ""
    try:
        return _TEXT.decode(fields["model"])
    except msgspec.ValidationError as error:
        text = f"The body must be a JSON object with a model: {error} - at `$.model`."
        raise BadRequest(text, param="model") from error


def _why_whole(fields: Mapping[str, Raw]) -> str:
    """Why one prefill cannot stand for this request, or empty: the KV cache that it hands over is one sequence's.

    Prompt log probabilities are computed by whoever computes the prompt, and decode does not.
    """

    def value(name: str) -> bytes:
        return bytes(fields.get(name, _NONE))

    reasons = {
        "n": value("n") not in _ONE,
        "best_of": value("best_of") not in _ONE,
        "beam_search": value("use_beam_search") not in _OFF,
        "prompt_logprobs": value("prompt_logprobs") not in _OFF,
        "echo_logprobs": value("echo") not in _OFF and value("logprobs") not in _OFF,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _is_several(prompt: bytes) -> bool:
    """True for a list of two or more prompts; a list of token ids is one prompt."""
    if prompt[:1] != b"[" or prompt[1:].lstrip()[:1] not in (b'"', b"["):
        return False
    return len(msgspec.json.decode(prompt, type=list[Raw])) > 1


def rename_model(intake: Intake, model: str) -> None:
    """The request is for this model, and its body says so."""
    fields = _FIELDS.decode(intake.body)
    fields["model"] = Raw(msgspec.json.encode(model))
    intake.body, intake.model, intake.fields = msgspec.json.encode(fields), model, fields
