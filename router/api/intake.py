"""Bytes -> Intake: the body is validated as JSON, and of its fields only those are read that decide its way."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from router.contract.errors import BadRequest
from router.core.intake import MODEL_OPTIONAL, SPLIT, Endpoint, Intake

_NONE = Raw(b"")


class _Head(msgspec.Struct, gc=False):
    """The fields that decide how a request is carried out. Types other than the model's are the engine's to judge."""

    model: str = ""
    stream: Raw = _NONE
    prompt: Raw = _NONE
    messages: Raw = _NONE
    session_id: Raw = _NONE
    prompt_cache_key: Raw = _NONE
    user: Raw = _NONE
    n: Raw = _NONE
    best_of: Raw = _NONE
    use_beam_search: Raw = _NONE
    prompt_logprobs: Raw = _NONE
    echo: Raw = _NONE
    logprobs: Raw = _NONE
    kv_transfer_params: Raw = _NONE
    request_id: Raw = _NONE


_HEADS = msgspec.json.Decoder(_Head)
_FIELDS = msgspec.json.Decoder(dict[str, Raw])

_OURS = ("kv_transfer_params", "request_id")
"""Fields that a client must not set: in stock engines they reach the scheduler unchecked."""

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
        head = _HEADS.decode(body)
    except msgspec.ValidationError as error:
        raise BadRequest(f"The body must be a JSON object with a model: {error}.", param=_param(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise BadRequest("The body is nested too deeply.") from error
    if not head.model and endpoint not in MODEL_OPTIONAL:
        raise BadRequest("Name a model in the body; GET /v1/models lists them.", param="model")
    if head.kv_transfer_params is not _NONE or head.request_id is not _NONE:
        body = _without_ours(body)
    prompt = head.messages if head.prompt is _NONE else head.prompt
    whole = _why_whole(head) if endpoint in SPLIT else endpoint.value
    session = head.session_id  # the most exact of what names one
    if session is _NONE:
        session = head.user if head.prompt_cache_key is _NONE else head.prompt_cache_key
    return Intake(endpoint, body, head.model, bytes(head.stream) == b"true", whole, trace, client_id, session, prompt)


def _why_whole(head: _Head) -> str:
    """Why one prefill cannot stand for this request, or empty: the KV cache that it hands over is one sequence's.

    Prompt log probabilities are computed by whoever computes the prompt, and decode does not.
    """
    if head.prompt is not _NONE and _is_several(bytes(head.prompt)):
        return "several_prompts"
    if head.n is head.best_of is head.use_beam_search is head.prompt_logprobs is head.echo is _NONE:
        return ""
    echoes = bytes(head.echo) not in _OFF and bytes(head.logprobs) not in _OFF
    reasons = {
        "n": bytes(head.n) not in _ONE,
        "best_of": bytes(head.best_of) not in _ONE,
        "beam_search": bytes(head.use_beam_search) not in _OFF,
        "prompt_logprobs": bytes(head.prompt_logprobs) not in _OFF,
        "echo_logprobs": echoes,
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def _is_several(prompt: bytes) -> bool:
    """True for a list of two or more prompts; a list of token ids is one prompt."""
    if prompt[:1] != b"[" or prompt[1:].lstrip()[:1] not in (b'"', b"["):
        return False
    return len(msgspec.json.decode(prompt, type=list[Raw])) > 1


def _without_ours(body: bytes) -> bytes:
    fields = _FIELDS.decode(body)
    for name in _OURS:
        fields.pop(name, None)
    return msgspec.json.encode(fields)


def rename_model(intake: Intake, model: str) -> None:
    """The request is for this model, and its body says so."""
    fields = _FIELDS.decode(intake.body)
    fields["model"] = Raw(msgspec.json.encode(model))
    intake.body, intake.model = msgspec.json.encode(fields), model


def _param(error: msgspec.ValidationError) -> str | None:
    return "model" if "$.model" in str(error) else None
