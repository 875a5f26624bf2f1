"""The inference paths as /docs and /openapi.json show them. `front` answers them before FastAPI ever sees a POST."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request

from router.contract.errors import Impossible
from router.core.intake import MODEL_OPTIONAL, Endpoint

_SUMMARIES = {
    Endpoint.CHAT: "Chat completion",
    Endpoint.COMPLETIONS: "Text completion",
    Endpoint.RESPONSES: "Response (where an engine has it)",
    Endpoint.MESSAGES: "Message (where an engine has it)",
    Endpoint.EMBEDDINGS: "Embeddings (where an engine has it)",
    Endpoint.SCORE: "Score (where an engine has it)",
    Endpoint.RERANK: "Rerank (where an engine has it)",
    Endpoint.TOKENIZE: "Text to token ids (where an engine has it)",
    Endpoint.DETOKENIZE: "Token ids to text (where an engine has it)",
}
_PROMPTS: dict[Endpoint, dict[str, Any]] = {  # Any: a JSON schema
    Endpoint.CHAT: {"messages": {"type": "array", "items": {"type": "object"}}},
    Endpoint.COMPLETIONS: {"prompt": {"description": "Text, token ids, or a list of either."}},
}


# Any: an OpenAPI fragment, as FastAPI types it.
Responses = dict[int | str, dict[str, Any]]

_TEXT = {"type": "string"}
_MAYBE_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}
_ERROR = {
    "type": "object",
    "properties": {"message": _TEXT, "type": _TEXT, "param": _MAYBE_TEXT, "code": _TEXT},
    "required": ["message", "type", "param", "code"],
}
_ENVELOPE = {"type": "object", "properties": {"error": _ERROR}, "required": ["error"]}

PROBLEMS: Responses = {
    "default": {"description": "What went wrong", "content": {"application/json": {"schema": _ENVELOPE}}}
}
"""Every answer that is not documented by its status."""
STATE: Responses = {503: {"description": "Not ready", "content": {"application/json": {"schema": {"type": "object"}}}}}
PLAIN: Responses = {200: {"description": "Prometheus' text format", "content": {"text/plain": {}}}}
_ANSWERS: Responses = {
    200: {"description": "The engine's answer", "content": {"application/json": {}, "text/event-stream": {}}},
    # Engines have their own words for what is wrong with a request.
    400: {"description": "The engine's or the router's refusal", "content": {"application/json": {}}},
}


def describe_inference(app: FastAPI) -> None:
    """The inference paths are documented, and other methods on them are refused with 405."""
    for endpoint in Endpoint:
        app.post(endpoint.value, summary=_SUMMARIES[endpoint], responses=_ANSWERS, openapi_extra=_schema(endpoint))(
            _never
        )


async def _never(request: Request) -> None:
    """OpenAI's request and answer, streamed or not; unknown fields reach the engines untouched."""
    raise Impossible(f"{request.url.path} got past its front.")


# Any: an OpenAPI fragment.
def _schema(endpoint: Endpoint) -> dict[str, Any]:
    prompts = _PROMPTS.get(endpoint, {})
    fields = {
        "model": {"type": "string"},
        **prompts,
        "stream": {"type": "boolean"},
        "max_tokens": {"type": "integer"},
        "temperature": {"type": "number"},
    }
    required = [*([] if endpoint in MODEL_OPTIONAL else ["model"]), *prompts]
    body = {"type": "object", "properties": fields, "required": required, "additionalProperties": True}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body}}}}
