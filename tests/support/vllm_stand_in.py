"""`vllm serve` for a rollout: a plain vLLM server in pull mode, as far as routers, probes and the drain hook see it.

It ends as vLLM does without a shutdown timeout: at SIGTERM what runs is cut off, and KV cache that nobody has fetched
is lost. So only what comes before SIGTERM can save a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from uuid import uuid4

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

LOAD_S, PREFILL_S, TOKEN_S = 0.5, 0.1, 0.05
ENGINE = uuid4().hex
HELD: set[str] = set()
RUNNING: set[str] = set()
HOST = os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"]


@asynccontextmanager
async def loading(_: FastAPI) -> AsyncIterator[None]:
    await asyncio.sleep(LOAD_S)
    yield


app = FastAPI(lifespan=loading)


@contextmanager
def running(request_id: str) -> Iterator[None]:
    RUNNING.add(request_id)
    try:
        yield
    finally:
        RUNNING.discard(request_id)


@app.get("/health")
def health() -> Response:
    return PlainTextResponse("")


@app.get("/version")
def version() -> dict[str, str]:
    return {"version": "0.33.0"}


@app.get("/v1/models")
def models() -> dict[str, object]:
    return {"object": "list", "data": [{"id": "m", "root": "/m", "parent": None, "max_model_len": 4096}]}


@app.get("/metrics")
def metrics() -> Response:
    rank = 'engine="0",model_name="m"'
    return PlainTextResponse(
        f"process_start_time_seconds {os.getpid()}\n"
        f"vllm:num_requests_running{{{rank}}} {len(RUNNING)}.0\n"
        f"vllm:num_requests_waiting{{{rank}}} 0.0\n"
        f"vllm:kv_cache_usage_perc{{{rank}}} {0.01 * (len(HELD) + len(RUNNING))}\n"
        f'vllm:cache_config_info{{block_size="16",cache_dtype="auto",num_gpu_blocks="64",{rank}}} 1.0\n'
    )


@app.post("/fetch")
async def fetch(request: Request) -> Response:
    """Another engine READs what this one holds."""
    wanted = await request.json()
    if wanted["engine"] != ENGINE or wanted["id"] not in HELD:
        return JSONResponse({}, 404)
    HELD.discard(wanted["id"])
    return JSONResponse({})


@app.post("/v1/completions")
async def completions(request: Request) -> Response:
    body = await request.json()
    params, mine = body.get("kv_transfer_params") or {}, uuid4().hex
    if params.get("do_remote_decode"):
        return await _prefill(request, mine)
    if params.get("do_remote_prefill"):
        url = f"http://{params['remote_host']}:{params['remote_port']}/fetch"
        with running(mine):
            async with httpx.AsyncClient(timeout=120.0) as client:
                wanted = {"engine": params["remote_engine_id"], "id": params["remote_request_id"]}
                read = await client.post(url, json=wanted)
        if read.status_code != 200:
            return JSONResponse({"error": {"message": "KV load failed"}}, 500)
    return StreamingResponse(_tokens(mine, int(body["max_tokens"])), media_type="text/event-stream")


async def _prefill(request: Request, mine: str) -> Response:
    with running(mine):
        await asyncio.sleep(PREFILL_S)
    if not request.headers["x-request-id"].startswith("probe-"):
        HELD.add(mine)
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1]],
        "remote_engine_id": ENGINE,
        "remote_request_id": mine,
        "remote_host": HOST,
        "remote_port": PORT,
        "tp_size": 1,
        "pp_size": 1,
        "transfer_mode": "pull",
    }
    return JSONResponse({"id": "c", "choices": [{"index": 0, "text": "p"}], "kv_transfer_params": params})


async def _tokens(mine: str, count: int) -> AsyncIterator[bytes]:
    with running(mine):
        for number in range(count):
            await asyncio.sleep(TOKEN_S)
            event = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": f" {number}"}]}
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
        yield b"data: [DONE]\n\n"


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # uvicorn would end gracefully, which vLLM does not


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    PORT = parser.parse_known_args(sys.argv[1:])[0].port
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    _Server(uvicorn.Config(app, host=HOST, port=PORT, log_level="error", timeout_keep_alive=30)).run()
