"""The FastAPI application: models, health, metrics, the fleet, and the documentation of what `front` carries itself."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from router.api.admin import Console, add_admin
from router.api.explained import add_explained
from router.api.problems import envelope, problem_headers
from router.api.stubs import PLAIN, PROBLEMS, STATE, describe_inference
from router.api.watching import Shown, add_watching
from router.contract.errors import (
    BadRequest,
    Impossible,
    MethodNotAllowed,
    ModelUnknown,
    RouteUnknown,
    TandemError,
)
from router.driver.router import Router
from router.driver.watch import FleetWatch

LOG = logging.getLogger("tandem.router")
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Surface:
    """What the application shows."""

    router: Router
    watch: FleetWatch
    render_metrics: Callable[[], bytes]
    ledger_degraded: Callable[[], bool]
    shown: Shown
    console: Console
    num_workers: Callable[[], int] = lambda: 1
    """Processes behind this port that are alive."""
    aliases: Callable[[], Mapping[str, str]] = dict
    """The model of each alias."""


def build_app(surface: Surface, lifespan: Lifespan) -> FastAPI:
    """The application; background tasks run inside `lifespan`."""
    app = FastAPI(title="Tandem router", lifespan=lifespan, redoc_url=None, redirect_slashes=False, responses=PROBLEMS)
    app.state.started_unix_s = int(time.time())
    add_problems(app)
    _add_models(app, surface)
    _add_health(app, surface)
    add_watching(app, surface.shown)
    add_admin(app, surface.router, surface.watch, surface.console)
    add_explained(app, surface.router)
    describe_inference(app)
    return app


def _problem(error: TandemError) -> Response:
    headers = {name.decode(): value.decode() for name, value in problem_headers(error)}
    return Response(envelope(error), error.http_status, headers)


def add_problems(app: FastAPI) -> None:
    """Every failure of the application is answered in OpenAI's envelope."""

    async def on_tandem_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, TandemError)
        return _problem(error)

    async def on_http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 405:
            allowed = (error.headers or {}).get("Allow", "").replace("GET", "GET, HEAD")  # see Front
            return _problem(MethodNotAllowed(f"{request.method} is not allowed here; use {allowed}.", param=allowed))
        if error.status_code == 404:
            return _problem(RouteUnknown(f"There is no {request.url.path} here; /docs lists what there is."))
        return _problem(BadRequest(str(error.detail)))

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return _problem(BadRequest(f"{name} cannot be read: {first['msg']}.", param=name))

    async def on_bug(request: Request, error: Exception) -> Response:
        LOG.error("%s %s failed by a bug", request.method, request.url.path, exc_info=error)
        return _problem(Impossible(f"The router failed ({type(error).__name__}); its log says why."))

    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(Exception, on_bug)
    app.add_exception_handler(TandemError, on_tandem_error)
    app.add_exception_handler(HTTPException, on_http_exception)


def _add_models(app: FastAPI, surface: Surface) -> None:
    def cards() -> dict[str, dict[str, object]]:
        known = surface.router.desk.serving(surface.router.fleet)
        known |= {alias: known[model] for alias, model in surface.aliases().items() if model in known}
        return {
            name: {
                "id": name,
                "object": "model",
                "created": app.state.started_unix_s,
                "owned_by": "tandem",
                "root": pool.owner,
                "parent": pool.owner if pool.owner != pool.model else None,
                "max_model_len": pool.max_context_tokens or None,
            }
            for name, pool in sorted(known.items())
        }

    @app.get("/v1/models")
    async def list_models() -> dict[str, object]:
        """Models that can be served; `root` tells aliases, and `parent` what a LoRA adapter belongs to."""
        return {"object": "list", "data": list(cards().values())}

    @app.get("/v1/models/{model:path}")
    async def get_model(model: str) -> dict[str, object]:
        """One model."""
        card = cards().get(model)
        if card is None:
            raise ModelUnknown(f"The model {model!r} does not exist here; GET /v1/models lists them.", param="model")
        return card


def _add_health(app: FastAPI, surface: Surface) -> None:
    router = surface.router

    @app.get("/healthz")
    @app.get("/health", include_in_schema=False)
    async def healthz() -> dict[str, str]:
        """The process is alive."""
        return {"status": "ok"}

    @app.get("/readyz", responses=STATE)
    @app.get("/ready", include_in_schema=False)
    async def readyz() -> JSONResponse:
        """Requests can be placed: 200, else 503 and `reason`. `degraded` says that the store does not answer."""
        models = sorted(router.desk.serving(router.fleet))
        ready = bool(models) and not router.leaving
        reason = "This router is shutting down." if router.leaving else router.desk.why_idle(router.fleet)
        state = {
            "ready": ready,
            "reason": reason,
            "draining": router.leaving,
            "degraded": surface.watch.degraded or surface.ledger_degraded(),
            "models": models,
            "workers": surface.num_workers(),
        }
        return JSONResponse(state, 200 if ready else 503, {} if ready else {"Retry-After": "1"})

    @app.get("/metrics", response_class=Response, responses=PLAIN)
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        router.clerk.work_off()
        return Response(await asyncio.to_thread(surface.render_metrics), media_type="text/plain; version=0.0.4")
