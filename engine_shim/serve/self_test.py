"""Routes of the self-test, for `tandem doctor` and between shims. All carry the deployment's seal."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from engine_shim.core.fates import Address
from engine_shim.driver.self_test import SelfTest, Target
from engine_shim.driver.self_test_calls import (
    CHECK_PATH,
    LEND_PATH,
    RETURN_PATH,
    Check,
    Lend,
    Return,
    Returned,
)
from engine_shim.serve.sealed import decode_sealed
from router.contract.errors import BadRequest
from router.contract.ids import EngineId
from router.contract.seal import SELF_TEST, Seal

RUN_PATH = "/kv/self-test"
MAX_SIZES = 8

_Body = TypeVar("_Body", bound=msgspec.Struct)


class _Order(msgspec.Struct):
    """Write patterns of these sizes to that peer."""

    engine_id: str
    host: str
    port: int
    sizes_bytes: tuple[int, ...]


def self_test_routes(self_test: SelfTest, seal: Seal) -> APIRouter:
    """Routes `POST /kv/self-test` and `POST /kv/scratch/{lend,check,return}`."""
    router = APIRouter(include_in_schema=False)

    @router.post(RUN_PATH)
    async def run(request: Request) -> Response:
        order = await _read(request, seal, RUN_PATH, _Order)
        if not 0 < len(order.sizes_bytes) <= MAX_SIZES:
            raise BadRequest(f"Between 1 and {MAX_SIZES} sizes can be tried at once.")
        target = Target(EngineId(order.engine_id), Address(order.host, order.port))
        return _json(await self_test.run(target, order.sizes_bytes))

    @router.post(LEND_PATH)
    async def lend(request: Request) -> Response:
        return _json(await self_test.lend(await _read(request, seal, LEND_PATH, Lend)))

    @router.post(CHECK_PATH)
    async def check(request: Request) -> Response:
        return _json(await self_test.check(await _read(request, seal, CHECK_PATH, Check)))

    @router.post(RETURN_PATH)
    async def take_return(request: Request) -> Response:
        self_test.take_return(await _read(request, seal, RETURN_PATH, Return))
        return _json(Returned())

    return router


async def _read(request: Request, seal: Seal, path: str, kind: type[_Body]) -> _Body:
    """The body, sealed together with its path. Raises as `decode_sealed`."""
    return await decode_sealed(request, seal, SELF_TEST + path.encode(), kind)


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
