"""Bodies that only a holder of the deployment key can have sent."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from engine_shim.serve.http_body import read_body
from router.contract.errors import BadRequest, Unauthorized
from router.contract.seal import KEY_VARIABLE, SEAL_HEADER, Seal

T = TypeVar("T")

MAX_BODY_BYTES = 64 * 1024


async def read_sealed(request: Request, seal: Seal, purpose: bytes, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The body, sealed for `purpose`. Raises Unauthorized, BodyTooLarge."""
    raw = await read_body(request.scope, request.receive, max_bytes)
    if not seal.header_holds(purpose, raw, request.headers.get(SEAL_HEADER, "")):
        path = request.url.path
        raise Unauthorized(f"{path} needs the seal of this deployment ({SEAL_HEADER}); set {KEY_VARIABLE} as on shims.")
    return raw


async def decode_sealed(
    request: Request, seal: Seal, purpose: bytes, kind: type[T], max_bytes: int = MAX_BODY_BYTES
) -> T:
    """The decoded body. Raises as `read_sealed`, and BadRequest for another shape."""
    raw = await read_sealed(request, seal, purpose, max_bytes)
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError as error:
        raise BadRequest(f"The body is not what {request.url.path} takes ({error}).") from error
