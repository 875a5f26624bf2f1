"""The routes beside inference: models, tokens, health, metrics."""

from __future__ import annotations

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from engine_shim.driver import Driver
from engine_shim.serve.http_body import read_body
from engine_shim.serve.metrics import CONTENT_TYPE, ShimMetrics
from engine_shim.serve.openai_body import DetokenizeBody, TokenizeBody, decode_body
from engine_shim.serve.prompts import PromptReader
from router.contract.errors import BadRequest, Draining

JSON = "application/json"


class ModelEntry(msgspec.Struct, tag_field="object", tag="model"):
    """One model, in OpenAI's fields and vLLM's `max_model_len`."""

    id: str
    created: int
    max_model_len: int
    root: str
    owned_by: str = "tandem"
    parent: None = None


class ModelList(msgspec.Struct, tag_field="object", tag="list"):
    """All models."""

    data: list[ModelEntry]


class Tokens(msgspec.Struct):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | None = None


class Text(msgspec.Struct):
    """Answer of /detokenize."""

    prompt: str


def model_routes(driver: Driver, prompts: PromptReader) -> APIRouter:
    """Routes `GET /v1/models` and `GET /v1/models/{name}`."""
    router = APIRouter()
    card = driver.card
    entry = ModelEntry(card.name, card.created_unix_s, card.max_context_tokens, card.name)

    @router.get("/v1/models")
    async def models() -> Response:
        return _json(ModelList([entry]))

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        prompts.check_model(name)
        return _json(entry)

    return router


def token_routes(prompts: PromptReader, max_body_bytes: int) -> APIRouter:
    """Routes `POST /tokenize` and `POST /detokenize`, in vLLM's shapes."""
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        raw = await read_body(request.scope, request.receive, max_body_bytes)
        return _json(await asyncio.to_thread(_tokenized, prompts, raw))

    @router.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        raw = await read_body(request.scope, request.receive, max_body_bytes)
        return _json(await asyncio.to_thread(_detokenized, prompts, raw))

    return router


def health_routes(driver: Driver, metrics: ShimMetrics) -> APIRouter:
    """The routes of `ready_routes`, and `GET /metrics`."""
    router = ready_routes(driver)

    @router.get("/metrics")
    async def metrics_text() -> Response:
        return Response(metrics.text(), headers={"content-type": CONTENT_TYPE})

    return router


def ready_routes(driver: Driver) -> APIRouter:
    """Routes `GET /healthz` (the process) and `GET /readyz` (it takes requests)."""
    router = APIRouter()

    @router.get("/healthz")
    async def healthz() -> Response:
        return Response(b'{"status":"ok"}', media_type=JSON)

    @router.get("/readyz")
    async def readyz() -> Response:
        if not driver.ready:
            raise Draining("This instance takes no requests; use another.")
        return Response(b'{"status":"ready"}', media_type=JSON)

    return router


def _tokenized(prompts: PromptReader, raw: bytes) -> Tokens:
    body = decode_body(raw, TokenizeBody)
    prompts.check_model(body.model)
    if (body.prompt is None) is (body.messages is None):
        raise BadRequest("Send either prompt or messages.", param="prompt")
    if body.prompt is None:
        ids = prompts.chat_ids(body)
    else:
        ids = prompts.text_ids(body.prompt, add_special_tokens=body.add_special_tokens is not False, param="prompt")
    texts = [prompts.tokenizer.token_text(token_id) for token_id in ids] if body.return_token_strs else None
    return Tokens(len(ids), prompts.card.max_context_tokens, ids, texts)


def _detokenized(prompts: PromptReader, raw: bytes) -> Text:
    body = decode_body(raw, DetokenizeBody)
    prompts.check_model(body.model)
    if body.tokens and max(body.tokens) >= prompts.card.vocab_size:
        raise BadRequest(f"tokens has ids outside 0..{prompts.card.vocab_size - 1}.", param="tokens")
    return Text(prompts.tokenizer.decode(body.tokens, skip_special_tokens=False))


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type=JSON)
