"""The side channel, on the shim's own port: handshakes, who this instance is, and taking an attempt back."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from engine_shim.driver import Driver
from engine_shim.driver.peers import PEER_PATH, read_card
from engine_shim.serve.http_body import read_body
from router.contract.errors import BadRequest
from router.contract.ids import TransferId
from router.store.codec import encode_instance

JSON = "application/json"
MAX_CARD_BYTES = 64 * 1024


class _Cancel(msgspec.Struct):
    transfer_id: str
    reason: str = "cancelled"


def side_channel(driver: Driver) -> APIRouter:
    """Routes `POST /kv/peer`, `GET /kv/instance`, `POST /kv/cancel`."""
    router = APIRouter(include_in_schema=False)

    @router.post(PEER_PATH)
    async def peer(request: Request) -> Response:
        if driver.peers is None:
            raise BadRequest("This instance has no fabric; it cannot exchange KV cache.")
        raw = await read_body(request.scope, request.receive, MAX_CARD_BYTES)
        card = await driver.peers.welcome(read_card(raw))
        return Response(msgspec.json.encode(card), media_type=JSON)

    @router.get("/kv/instance")
    async def instance() -> Response:
        return Response(encode_instance(driver.instance), media_type=JSON)

    @router.post("/kv/cancel")
    async def cancel(request: Request) -> Response:
        raw = await read_body(request.scope, request.receive, MAX_CARD_BYTES)
        try:
            wanted = msgspec.json.decode(raw, type=_Cancel)
        except msgspec.DecodeError as error:
            raise BadRequest(f"The body must be an object with a transfer_id ({error}).") from error
        state = driver.cancel(TransferId(wanted.transfer_id), wanted.reason)
        return Response(msgspec.json.encode({"transfer_id": wanted.transfer_id, "state": state}), media_type=JSON)

    return router
