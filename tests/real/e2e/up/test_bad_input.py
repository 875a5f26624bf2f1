"""Bad input through the router: the right 4xx in OpenAI's envelope, no harm to anybody, nothing held."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from tests.support.up import MODEL, Up, read_metrics

pytestmark = [pytest.mark.needs("nixl", "model", "redis"), pytest.mark.timeout(300)]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": HI, "max_tokens": 2} | fields).encode()


def text(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "hi", "max_tokens": 2} | fields).encode()


NEVER_SENT = [
    ("broken json", CHAT, b'{"model": "smollm2-135m", "messages": [', 400, None),
    ("no json", TEXT, b"hello", 400, None),
    ("an array", TEXT, b"[1, 2]", 400, None),
    ("empty body", CHAT, b"", 400, None),
    ("byte order mark", TEXT, b"\xef\xbb\xbf" + text(), 400, None),
    ("not utf-8", TEXT, b'{"model": "\xff\xfe"}', 400, None),
    ("NaN", TEXT, b'{"model": "smollm2-135m", "prompt": "hi", "temperature": NaN}', 400, None),
    ("deep nesting", TEXT, b'{"model": "smollm2-135m", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, None),
    ("unknown model", CHAT, chat(model="nobody"), 404, "model"),
    ("model of a wrong type", CHAT, chat(model=7), 400, "model"),
    ("no model", CHAT, json.dumps({"messages": HI}).encode(), 400, "model"),
]
REFUSED = [
    ("negative max_tokens", CHAT, chat(max_tokens=-1), 400, "max_tokens"),
    ("zero max_tokens", TEXT, text(max_tokens=0), 400, "max_tokens"),
    ("max_tokens as text", TEXT, text(max_tokens="5"), 400, "max_tokens"),
    ("empty prompt", TEXT, text(prompt=""), 400, "prompt"),
    ("no prompt", TEXT, json.dumps({"model": MODEL}).encode(), 400, "prompt"),
    ("prompt of a wrong type", TEXT, text(prompt={"a": 1}), 400, "prompt"),
    ("token out of the vocabulary", TEXT, text(prompt=[1, 10**9]), 400, "prompt"),
    ("empty messages", CHAT, chat(messages=[]), 400, "messages"),
    ("messages of a wrong type", CHAT, chat(messages="hi"), 400, "messages"),
    ("prompt longer than the context", TEXT, text(prompt=[1] * 9000), 400, "prompt"),
    ("temperature too high", CHAT, chat(temperature=3), 400, "temperature"),
    ("top_p out of range", CHAT, chat(top_p=0), 400, "top_p"),
    ("n of nothing", CHAT, chat(n=0), 400, "n"),
    ("stream options without stream", CHAT, chat(stream_options={"include_usage": True}), 400, "stream_options"),
    ("bias of a wrong type", CHAT, chat(logit_bias={"x": 1}), 400, "logit_bias"),
    ("too many stop strings", CHAT, chat(stop=["a"] * 40), 400, "stop"),
]


def check_envelope(answer: httpx.Response, status: int, param: str | None) -> None:
    assert answer.status_code == status, answer.text[:300]
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["message"].strip()
    if param is not None:
        assert error["param"] == param, error


def prefill_url(up: Up) -> str:
    return next(url for name, url in up.engines().items() if name.startswith("prefill"))


@pytest.mark.parametrize(
    ("path", "body", "status", "param"), [c[1:] for c in NEVER_SENT], ids=[c[0] for c in NEVER_SENT]
)
def test_what_the_router_can_judge_reaches_no_engine(
    quiet_after: Up, path: str, body: bytes, status: int, param: str | None
) -> None:
    engines = quiet_after.engines().values()
    before = [read_metrics(url).get("tandem_shim_requests_total", 0) for url in engines]
    answer = httpx.post(quiet_after.url + path, content=body, headers={"content-type": "application/json"}, timeout=30)
    check_envelope(answer, status, param)
    assert [read_metrics(url).get("tandem_shim_requests_total", 0) for url in engines] == before


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "status", "param"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED])
def test_what_engines_refuse_comes_back_as_their_4xx(
    quiet_after: Up, path: str, body: bytes, status: int, param: str | None, stream: bool
) -> None:
    if stream and b"stream_options" in body:
        pytest.skip("with stream it is good input")
    if stream:
        body = body[:-1] + b', "stream": true}'
    answer = httpx.post(quiet_after.url + path, content=body, headers={"content-type": "application/json"}, timeout=30)
    check_envelope(answer, status, param)


def test_a_clients_own_kv_transfer_params_never_pass(quiet_after: Up) -> None:
    planted = {"do_remote_prefill": True, "remote_engine_id": "evil@1", "remote_host": "10.0.0.1", "remote_port": 1}
    body = {"prompt": "The capital of Italy is", "temperature": 0}
    answer = httpx.post(quiet_after.url + TEXT, content=text(**body, kv_transfer_params=planted), timeout=30)
    assert answer.status_code == 200, answer.text
    clean = httpx.post(quiet_after.url + TEXT, content=text(**body), timeout=30)
    assert answer.json()["choices"][0]["text"] == clean.json()["choices"][0]["text"]


def test_a_20_mb_body_is_413_and_leaves_the_router_small(quiet_after: Up) -> None:
    body = b'{"model": "smollm2-135m", "prompt": "' + b"a" * (20 << 20) + b'"}'
    for _ in range(3):
        answer = httpx.post(quiet_after.url + TEXT, content=body, timeout=60)
        check_envelope(answer, 413, None)
        assert answer.json()["error"]["code"] == "body_too_large"
    assert max(size for name, size in quiet_after.rss_bytes().items() if name.startswith("router")) < 120 << 20


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405),
        ("PUT", TEXT, 405),
        ("DELETE", "/v1/models", 405),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/models/nobody", 404),
        ("POST", "/kv/peer", 404),
        ("POST", "/kv/cancel", 404),
    ],
)
def test_wrong_paths_and_methods(quiet_after: Up, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, quiet_after.url + path, timeout=30)
    assert answer.status_code == status
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
    if status == 405:
        assert answer.headers["allow"]


def test_bytes_that_are_no_http_get_400_and_others_are_served(quiet_after: Up) -> None:
    host, port = quiet_after.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as raw:
        raw.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert raw.recv(1024).startswith(b"HTTP/1.1 400")
    assert httpx.get(f"{quiet_after.url}/healthz").status_code == 200
