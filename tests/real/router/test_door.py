"""What may come in, and how the rest is turned away."""

import asyncio
import json

import pytest

from tests.support.routers import BODY, PATH, rig, until
from tests.support.wire import Wire, post

pytestmark = pytest.mark.parametrize("data_path", ["hook", "asgi"])

STREAM = BODY | {"stream": True}


async def exchange(port: int, raw: bytes):
    wire = await Wire.to(port)
    wire.send(raw)
    return await wire.answer()


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b"", 400, None),
        (b"{", 400, None),
        (b"[]", 400, None),
        (b'"x"', 400, None),
        (b"{}", 400, "model"),
        (b'{"model":""}', 400, "model"),
        (b'{"model":1}', 400, "model"),
        (b'{"model":"m","temperature":NaN}', 400, None),
        (b'\xef\xbb\xbf{"model":"m"}', 400, None),
        (b'{"model":"m",}', 400, None),
        (b'{"model":"\xff"}', 400, None),
        (b'{"model":"m","x":"\xff"}', 400, None),
        (b'{"model":"m","\xff":1}', 400, None),
        (b'{"model":"m","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, None),
        (b'{"model":"m"} x', 400, None),
        (b'{"model":"other","prompt":"hi"}', 404, "model"),
    ],
)
async def test_bad_bodies_are_refused_and_reach_no_engine(data_path, body, status, param):
    async with rig(data_path=data_path) as r:
        answer = await exchange(r.port, post(PATH, body))
        assert answer.status == status
        error = answer.json()["error"]
        assert error["param"] == param
        assert error["type"] == "invalid_request_error"
        assert answer.keep_alive
        assert not r.prefill.seen and not r.decode.seen
        assert r.at_rest


async def test_duplicate_keys_are_read_alike_by_router_and_engines(data_path):
    async with rig(data_path=data_path) as r:
        answer = await exchange(r.port, post(PATH, b'{"model":"x","model":"m","prompt":"a","prompt":"b"}'))
        assert answer.status == 200
        for seen in (*r.prefill.seen, *r.decode.seen):
            assert seen.fields["model"] == "m" and seen.fields["prompt"] == "b"


async def test_a_megabyte_key_is_harmless(data_path):
    async with rig(data_path=data_path) as r:
        answer = await exchange(r.port, post(PATH, b'{"model":"m","prompt":"x","%b":1}' % (b"k" * 1_000_000)))
        assert answer.status == 200


async def test_chunked_bodies_arrive_whole(data_path):
    async with rig(data_path=data_path) as r:
        raw = json.dumps(BODY).encode()
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in raw)
        head = f"POST {PATH} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nTrailer: x\r\n\r\n".encode()
        answer = await exchange(r.port, head + chunks + b"0\r\nx: 1\r\n\r\n")
        assert answer.status == 200
        assert r.prefill.seen[0].fields["prompt"] == "hi"
        assert "transfer-encoding" not in r.decode.seen[0].headers


@pytest.mark.parametrize(
    "lines",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: +5",
        "Transfer-Encoding: gzip, chunked",
        "Bad Name: x",
    ],
)
async def test_conflicting_framing_is_refused_and_the_connection_closed(data_path, lines):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        wire.send(f"POST {PATH} HTTP/1.1\r\nHost: t\r\n{lines}\r\n\r\n0\r\n\r\n".encode())
        answer = await wire.answer()
        assert answer.status in (400, 501)
        assert answer.json()["error"]["code"]
        assert await wire.rest() == b""
        assert not r.decode.seen


@pytest.mark.parametrize(
    "lines", ["Transfer-Encoding: gzip", "Upgrade: x\r\nConnection: upgrade\r\nTransfer-Encoding: x"]
)
@pytest.mark.parametrize("method", ["CONNECT", "POST"])
async def test_a_refusal_is_not_lost_on_a_request_that_wants_another_protocol(data_path, method, lines):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        wire.send(f"{method} {PATH} HTTP/1.1\r\nHost: t\r\n{lines}\r\n\r\n".encode())
        assert (await wire.answer()).status == 400
        assert await wire.rest() == b""


async def test_expect_continue_is_answered_at_once(data_path):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        raw = json.dumps(BODY | {"pad": "x" * 2_000_000}).encode()
        wire.send(
            f"POST {PATH} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        )
        assert await wire.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.send(raw)
        assert (await wire.answer()).status == 200


async def test_pipelined_requests_are_answered_in_order(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.prefill, delay_s=0.02)
        wire = await Wire.to(r.port)
        get = b"GET /v1/models HTTP/1.1\r\nHost: t\r\n\r\n"
        wire.send(get + post(PATH, STREAM) + post(PATH, BODY) + post(PATH, BODY, "X-Request-Id: last") + get)
        answers = [await wire.answer() for _ in range(5)]
        assert [a.status for a in answers] == [200] * 5
        assert answers[0].json()["object"] == "list"
        assert answers[1].body.endswith(b"data: [DONE]\n\n")
        assert answers[2].body == r.decode.behaviour.answer
        assert answers[3].headers["x-request-id"] == "last"
        assert answers[4].json()["object"] == "list"
        await r.come_to_rest()


async def test_a_pipelining_client_that_leaves_stops_the_running_request(data_path):
    async with rig(data_path=data_path) as r:
        r.behave(r.prefill, delay_s=5.0)
        r.behave(r.decode, delay_s=5.0)
        wire = await Wire.to(r.port)
        wire.send(post(PATH, BODY))
        await until(lambda: len(r.decode.seen) == 1)
        wire.cut()
        await r.come_to_rest()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413_and_one_at_it_is_not(data_path, chunked):
    async with rig(data_path=data_path, max_body_bytes=100_000) as r:

        def request(size: int) -> bytes:
            shell = len(json.dumps(BODY | {"pad": ""}).encode())
            raw = json.dumps(BODY | {"pad": "x" * (size - shell)}).encode()
            assert len(raw) == size
            if not chunked:
                return post(PATH, raw)
            head = f"POST {PATH} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            return head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw)

        assert (await exchange(r.port, request(100_000))).status == 200
        wire = await Wire.to(r.port)
        wire.send(request(100_001))
        answer = await wire.answer()
        assert (answer.status, answer.json()["error"]["code"]) == (413, "body_too_large")
        assert len(r.decode.seen) == 1
        wire.send(request(50_000))
        assert (await wire.answer()).status == 200, "the connection is still in step"
        large = await r.client.post(PATH, content=request(20_000_000))
        assert large.status_code == 413, "a client that is still sending sees the answer"


async def test_a_body_over_the_limit_that_waits_for_continue_is_never_asked_for(data_path):
    async with rig(data_path=data_path, max_body_bytes=100_000) as r:
        wire = await Wire.to(r.port)
        wire.send(f"POST {PATH} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 200000\r\n\r\n".encode())
        answer = await wire.answer()
        assert (answer.status, answer.keep_alive) == (413, False)
        assert await wire.rest() == b""


async def test_a_client_that_never_stops_sending_is_cut(data_path):
    async with rig(data_path=data_path, max_body_bytes=1000, arrival_s=0.2) as r:
        wire = await Wire.to(r.port)
        wire.send(f"POST {PATH} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        wire.send(b"800\r\n%b\r\n" % (b"x" * 0x800))
        assert (await wire.answer()).status == 413
        wire.send(b"8\r\nxxxx")
        assert await wire.rest() == b""


async def test_an_image_sized_body_reaches_both_legs_whole(data_path):
    async with rig(data_path=data_path) as r:
        raw = json.dumps(BODY | {"image": "A" * 8_900_000}).encode()
        answer = await r.client.post(PATH, content=raw)
        assert answer.status_code == 200
        assert len(r.prefill.seen[0].body) > 8_900_000 and len(r.decode.seen[0].body) > 8_900_000


@pytest.mark.parametrize("head", ["X-Big: " + "a" * 70_000, "\r\n".join(f"X-{n}: {'a' * 300}" for n in range(250))])
async def test_a_head_over_the_limit_is_431(data_path, head):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        wire.send(post(PATH, BODY, head))
        answer = await wire.answer()
        assert (answer.status, answer.json()["error"]["code"]) == (431, "headers_too_large")
        assert await wire.rest() == b""
        assert not r.decode.seen


async def test_an_endless_head_is_431_too(data_path):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        wire.send(f"POST {PATH} HTTP/1.1\r\nX: ".encode())
        for _ in range(20):
            wire.send(b"a" * 50_000)
        assert (await wire.answer()).status == 431


async def test_a_long_head_below_the_limit_is_served(data_path):
    async with rig(data_path=data_path) as r:
        assert (await exchange(r.port, post(PATH, BODY, "Authorization: Bearer " + "a" * 10_000))).status == 200


@pytest.mark.parametrize("start", [f"POST {PATH} HT", f"POST {PATH} HTTP/1.1\r\nContent-Length: 9\r\n\r\n{{", ""])
async def test_a_request_that_does_not_arrive_in_time_is_408(data_path, start):
    async with rig(data_path=data_path, arrival_s=0.2) as r:
        wire = await Wire.to(r.port)
        wire.send(start.encode())
        answer = await wire.answer()
        assert (answer.status, answer.json()["error"]["code"]) == (408, "request_timeout")
        assert await wire.rest() == b""
        assert r.at_rest


async def test_bodies_of_all_other_paths_are_bounded_in_time_and_size_too(data_path):
    async with rig(data_path=data_path, arrival_s=0.2, max_body_bytes=1000) as r:
        for length, status in ((9, 408), (2000, 413)):
            wire = await Wire.to(r.port)
            wire.send(f"POST /admin/drain HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{{".encode())
            assert (await wire.answer()).status == status
            wire.cut()


async def test_a_body_that_trickles_in_is_served(data_path):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        for byte in post(PATH, BODY):
            wire.send(bytes([byte]))
            await asyncio.sleep(0)
        assert (await wire.answer()).status == 200


async def test_connection_close_is_honoured(data_path):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        wire.send(post(PATH, BODY, "Connection: close"))
        answer = await wire.answer()
        assert (answer.status, answer.keep_alive) == (200, False)
        assert await wire.rest() == b""


async def test_http_1_0_is_served(data_path):
    async with rig(data_path=data_path) as r:
        raw = json.dumps(BODY).encode()
        wire = await Wire.to(r.port)
        wire.send(f"POST {PATH} HTTP/1.0\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
        answer = await wire.answer()
        assert (answer.status, answer.body) == (200, r.decode.behaviour.answer)
        assert await wire.rest() == b""


async def test_compressed_bodies_are_415(data_path):
    async with rig(data_path=data_path) as r:
        answer = await exchange(r.port, post(PATH, BODY, "Content-Encoding: gzip"))
        assert (answer.status, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "application/json; charset=utf-8", ""])
async def test_the_content_type_of_the_request_does_not_matter(data_path, content_type):
    async with rig(data_path=data_path) as r:
        answer = await r.client.post(PATH, content=json.dumps(BODY), headers={"Content-Type": content_type})
        assert answer.status_code == 200
        assert r.decode.seen[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("given", "echoed"), [("abc", True), ("x" * 128, True), ("x" * 129, False), ("caf\xe9", False), ("a\tb", False)]
)
async def test_a_sane_request_id_is_echoed_and_no_other(data_path, given, echoed):
    async with rig(data_path=data_path) as r:
        wire = await Wire.to(r.port)
        raw = json.dumps(BODY).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: t\r\nContent-Length: {len(raw)}\r\nX-Request-Id: {given}\r\n\r\n"
        wire.send(head.encode("latin-1") + raw)
        answer = await wire.answer()
        assert (answer.headers["x-request-id"] == given) is echoed
        assert echoed or answer.headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", PATH, 405, "POST"),
        ("PUT", "/v1/chat/completions", 405, "POST"),
        ("DELETE", "/v1/models", 405, "GET, HEAD"),
        ("HEAD", PATH, 405, "POST"),
        ("GET", "/nothing", 404, None),
        ("POST", "/flush_cache", 404, None),
        ("POST", PATH + "/", 404, None),
    ],
)
async def test_other_methods_and_paths_are_refused_in_the_envelope(data_path, method, path, status, allow):
    async with rig(data_path=data_path) as r:
        answer = await r.client.request(method, path, json=BODY)
        assert answer.status_code == status
        assert method == "HEAD" or answer.json()["error"]["type"] == "invalid_request_error"
        assert answer.headers.get("allow") == allow
        assert answer.headers["x-request-id"].startswith("req-")
        assert not r.decode.seen


async def test_head_is_get_without_its_body(data_path):
    async with rig(data_path=data_path) as r:
        for path in ("/healthz", "/health", "/readyz", "/ready", "/v1/models", "/v1/models/m", "/metrics"):
            wire = await Wire.to(r.port)
            wire.send(f"HEAD {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n".encode())
            head, _, body = (await wire.rest()).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and body == b"", path
            assert int(head.lower().partition(b"content-length: ")[2].split()[0]) > 0


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /v1/models HTTP/1.1", 200),
        ("GET /nothing HTTP/1.1", 404),
        ("DELETE /healthz HTTP/1.1", 405),
        (f"POST {PATH} HTTP/1.1\r\nContent-Length: 2000", 413),
        ("POST /admin/drain HTTP/1.1\r\nContent-Length: 2000", 413),
        (f"POST {PATH} HTTP/1.1\r\nContent-Length: 9", 408),
        (f"POST {PATH} HTTP/1.1\r\nTransfer-Encoding: gzip", 400),
        (f"POST {PATH} HTTP/1.1\r\nX: {'x' * 5000}", 431),
    ],
)
async def test_every_answer_names_its_request_as_the_client_does(data_path, head, status):
    async with rig(data_path=data_path, arrival_s=0.2, max_body_bytes=1000, max_head_bytes=4000) as r:
        answer = await exchange(r.port, f"{head}\r\nHost: t\r\nX-Request-Id: mine\r\n\r\n".encode())
        assert (answer.status, answer.headers["x-request-id"]) == (status, "mine")


async def test_trailers_say_nothing(data_path):
    async with rig(data_path=data_path, priority_from="header", max_head_bytes=1000) as r:
        raw = json.dumps(BODY).encode()
        start = f"POST {PATH} HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n{len(raw):x}\r\n".encode()
        wire = await Wire.to(r.port)
        wire.send(start + raw + b"\r\n0\r\nX-Priority: high\r\nX-Request-Id: late\r\n\r\n")
        answer = await wire.answer()
        assert answer.status == 200 and answer.headers["x-request-id"].startswith("req-")
        wire.send(start + raw + b"\r\n0\r\n" + b"X: y\r\n" * 300)
        refused = await wire.answer()
        assert (refused.status, refused.json()["error"]["code"]) == (431, "headers_too_large")
        assert await wire.rest() == b""
        assert len(r.decode.seen) == 1
        await r.come_to_rest()


async def test_a_query_string_changes_nothing(data_path):
    async with rig(data_path=data_path) as r:
        assert (await r.client.post(PATH + "?api-version=1", json=BODY)).status_code == 200
