"""The side channel, on the shim's own port: handshakes, who this instance is, taking an attempt back, fencing a peer.

All but the question who this is are sealed with the deployment key.
"""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request, Response

from engine_shim.driver import Driver, recall_calls
from engine_shim.driver.hand_over import HandOver
from engine_shim.driver.handshake import HELLO_PATH, PEER_PATH, Question, introduce, read_card
from engine_shim.driver.recall_calls import Wanted
from engine_shim.serve.sealed import decode_sealed, read_sealed
from engine_shim.serve.self_test import self_test_routes
from router.contract.errors import BadRequest
from router.contract.ids import TransferId
from router.contract.seal import CANCEL, FENCE, HELLO, HELLO_ANSWER, PEER, RECALL, SEAL_HEADER, Seal
from router.store.codec import encode_instance

JSON = "application/json"


class _Cancel(msgspec.Struct):
    transfer_id: str
    reason: str = "cancelled"


class _Fence(msgspec.Struct):
    engine_id: str
    """Of one start, or the instance id of which every lost start is meant."""


def side_channel(driver: Driver, seal: Seal) -> APIRouter:
    """Routes `POST /kv/{hello,peer,cancel,fence,recall}`, `GET /kv/instance`, and the self-test's."""
    router = APIRouter(include_in_schema=False)

    @router.post(HELLO_PATH)
    async def hello(request: Request) -> Response:
        question = await decode_sealed(request, seal, HELLO, Question)
        answer = msgspec.json.encode(introduce(_hand_over(driver).peers.card, question))
        return Response(answer, media_type=JSON, headers={SEAL_HEADER: seal.header(HELLO_ANSWER, answer)})

    @router.post(PEER_PATH)
    async def peer(request: Request) -> Response:
        raw = await read_sealed(request, seal, PEER)
        await _hand_over(driver).peers.welcome(read_card(raw))
        return Response(b"{}", media_type=JSON)

    @router.get("/kv/instance")
    async def instance() -> Response:
        return Response(encode_instance(driver.instance), media_type=JSON)

    @router.post("/kv/cancel")
    async def cancel(request: Request) -> Response:
        wanted = await decode_sealed(request, seal, CANCEL, _Cancel)
        state = driver.cancel(TransferId(wanted.transfer_id), wanted.reason)
        return Response(msgspec.json.encode({"transfer_id": wanted.transfer_id, "state": state}), media_type=JSON)

    @router.post("/kv/fence")
    async def fence(request: Request) -> Response:
        wanted = await decode_sealed(request, seal, FENCE, _Fence)
        fenced = _hand_over(driver).peers.fence(wanted.engine_id)
        return Response(msgspec.json.encode({"fenced": fenced}), media_type=JSON)

    if (recall := driver.recall) is not None:

        @router.post(recall_calls.PATH)
        async def give(request: Request) -> Response:
            wanted = await decode_sealed(request, seal, RECALL, Wanted, recall_calls.MAX_BODY_BYTES)
            return Response(msgspec.json.encode(await recall.give(wanted)), media_type=JSON)

    if driver.self_test is not None:
        router.include_router(self_test_routes(driver.self_test, seal))
    return router


def _hand_over(driver: Driver) -> HandOver:
    if driver.hand_over is None:
        raise BadRequest("This instance has no fabric; it cannot exchange KV cache.")
    return driver.hand_over
