"""The shim's HTTP face, put together."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import Route

from engine_shim.driver import Driver
from engine_shim.serve.http_body import ClientGone
from engine_shim.serve.inference import InferenceRoute, Serving
from engine_shim.serve.intake import Endpoint
from engine_shim.serve.metrics import ShimMetrics
from engine_shim.serve.openai_request import RequestReader
from engine_shim.serve.problems import on_client_gone, on_problem
from engine_shim.serve.prompts import PromptReader
from engine_shim.serve.routes import health_routes, model_routes, token_routes
from engine_shim.settings import ShimSettings
from router.contract.errors import TandemError


def build_app(driver: Driver, *, settings: ShimSettings, side_channel: APIRouter | None = None) -> FastAPI:
    """An ASGI app that serves this Driver; every error leaves it in OpenAI's envelope."""
    metrics = ShimMetrics(driver)
    prompts = PromptReader(driver.card, driver.tokenizer)
    reader = RequestReader(prompts, settings.request_for_s)
    serving = Serving(driver, reader, metrics, settings.max_body_bytes)
    app = FastAPI(title="Tandem shim", docs_url=None, redoc_url=None)
    app.router.routes.append(Route("/v1/chat/completions", InferenceRoute(Endpoint.CHAT, serving), methods=["POST"]))
    app.router.routes.append(Route("/v1/completions", InferenceRoute(Endpoint.COMPLETION, serving), methods=["POST"]))
    app.include_router(model_routes(driver, prompts))
    app.include_router(token_routes(prompts, settings.max_body_bytes))
    app.include_router(health_routes(driver, metrics))
    if side_channel is not None:
        app.include_router(side_channel)
    for kind in (TandemError, HTTPException, Exception):
        app.add_exception_handler(kind, on_problem)
    app.add_exception_handler(ClientGone, on_client_gone)
    return app
