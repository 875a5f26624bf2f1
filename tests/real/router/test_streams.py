"""Streams arrive byte for byte, event by event, and no faster than the client takes them."""

import asyncio

import pytest

from router.bench.mock_connection import DONE
from tests.support.routers import BODY, PATH, rig, until
from tests.support.wire import Wire, post

pytestmark = pytest.mark.parametrize("data_path", ["hook", "asgi"])

STREAM = BODY | {"stream": True}
UTF8 = '{"choices":[{"index":0,"delta":{"content":"北京🌍"}}]}'.encode()
USAGE = b'{"choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":3,"completion_tokens":9,"total_tokens":12}}'


def expected(behaviour) -> bytes:
    return b"data: %b\n\n" % behaviour.event * behaviour.num_events + DONE


@pytest.mark.parametrize("piece_bytes", [0, 1, 3, 64])
async def test_bytes_are_those_of_the_engine_however_they_are_cut(data_path, piece_bytes):
    async with rig(data_path=data_path) as r:
        r.behave(r.decode, event=UTF8, piece_bytes=piece_bytes, num_events=5)
        answer = await r.client.post(PATH, json=STREAM)
        assert answer.content == expected(r.decode.behaviour)
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-length" not in answer.headers
        await r.come_to_rest()


async def test_an_event_arrives_while_the_next_is_still_to_come(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.decode, num_events=3, gap_s=0.3)
        arrived = []
        async with r.client.stream("POST", PATH, json=STREAM) as answer:
            async for _ in answer.aiter_raw():
                arrived.append(r.decode.num_open)
        assert arrived[0] == 1, "the engine was still streaming when its first event arrived"
        assert arrived[-1] == 0


async def test_headers_of_the_engine_pass_but_for_its_connection(data_path):
    more = ((b"Content-Encoding", b"gzip"), (b"Connection", b"x-a"), (b"x-a", b"1"), (b"Server", b"engine"))
    more += ((b"Keep-Alive", b"timeout=5"), (b"X-Should-Retry", b"false"), (b"X-Request-Id", b"engines"))
    async with rig(data_path=data_path) as r:
        r.behave(r.decode, answer=b"\x1f\x8bnot really", headers=more)
        wire = await Wire.to(r.port)
        wire.send(post(PATH, BODY))
        answer = await wire.answer()
        assert answer.body == b"\x1f\x8bnot really"
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["x-request-id"].startswith("req-")
        assert not {"x-a", "keep-alive", "server", "connection"} & answer.headers.keys()


async def test_json_to_a_stream_request_stays_json(data_path):
    async with rig(data_path=data_path) as r:
        odd = BODY | {"stream": "true"}
        answer = await r.client.post(PATH, json=odd)
        assert answer.headers["content-type"] == "application/json"
        assert answer.content == r.decode.behaviour.answer


async def test_tokens_are_counted_from_usage(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.decode, event=USAGE, num_events=2, gap_s=0.01)
        await r.client.post(PATH, json=STREAM)
        text = (await r.client.get("/metrics")).text
        labels = 'endpoint="/v1/completions",mode="push",model="m",stream="true"'
        assert f"tandem_tpot_seconds_count{{{labels}}} 1.0" in text
        assert f"tandem_ttft_seconds_count{{{labels}}} 1.0" in text


async def test_a_slow_reader_holds_the_engine_back_and_costs_no_memory(data_path):
    async with rig(data_path=data_path) as r:
        total = 64 * 1024 * 1024
        r.behave(r.decode, event=b"x" * 65536, num_events=total // 65536)
        wire = await Wire.to(r.port)
        wire.writer.transport.pause_reading()
        wire.send(post(PATH, STREAM))
        await until(lambda: any(c.waiting for c in r.decode.connections))
        # The engine's own buffer is full, so it waits: what it has written is in sockets and bounded buffers.
        sent = max(c.written for c in r.decode.connections)
        assert sent < total // 2
        other = await r.client.post(PATH, json=BODY)
        assert other.status_code == 200, "another request goes on meanwhile"
        wire.writer.transport.resume_reading()
        body = (await wire.answer_in_one()).body
        assert len(body) == len(expected(r.decode.behaviour))
        await r.come_to_rest()


async def test_a_client_that_takes_nothing_is_given_up(data_path):
    async with rig(data_path=data_path, stalled_s=0.3, next_token_s=0.2) as r:
        r.behave(r.decode, event=b"x" * 65536, num_events=4096)
        wire = await Wire.to(r.port)
        wire.writer.transport.pause_reading()
        wire.send(post(PATH, STREAM))
        await until(lambda: len(r.decode.seen) == 1)
        await r.come_to_rest()
        assert r.decode.seen[0].aborted
        assert 'tandem_cancels_total{phase="stream"} 1.0' in (await r.client.get("/metrics")).text
        wire.cut()


async def test_a_client_that_asks_on_and_takes_no_answer_costs_no_memory_and_is_given_up(data_path):
    async with rig(data_path=data_path, stalled_s=0.5) as r:
        r.behave(r.decode, answer=b'"%b"' % (b"x" * 900_000))
        wire = await Wire.to(r.port)
        wire.writer.transport.pause_reading()
        async with asyncio.timeout(60):
            while not wire.writer.transport.is_closing():
                wire.send(post(PATH, BODY))
                await asyncio.sleep(0.02)
                assert len(r.decode.seen) < 30, "what it does not take is in the buffers of sockets"
        await r.come_to_rest()
