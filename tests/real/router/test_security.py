"""Whose key goes where, who may call from a browser, and TLS on both sides."""

import asyncio
import hashlib
import logging
import ssl

import httpx
import pytest

from router import watched
from router.api.tls import server_certificate
from tests.support.certificates import Certificates
from tests.support.routers import BODY, PATH, rig, until
from tests.support.wire import Wire, post

pytestmark = pytest.mark.parametrize("data_path", ["hook", "asgi"])

STREAM = BODY | {"stream": True}
K1, K2, ADMIN = "client-key-1", "engine-key-2", "admin-key-3"
KEYS = (f"ann:{hashlib.sha256(K1.encode()).hexdigest()}",)
UI = "http://ui.example"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def test_a22_every_key_goes_where_it_belongs(data_path, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)

    def prepare(engine):
        if engine.role == "prefill":
            engine.api_key = K2

    def knowing(urls):
        (tmp_path / "engine_keys").write_text(f"{urls[1]}\n")  # decode wants none
        return {"engine_key_file": str(tmp_path / "engine_keys")}

    async with rig(prepare=prepare, knowing=knowing, data_path=data_path, api_keys=KEYS, engine_key=K2) as r:
        for name in ("Authorization", "X-Api-Key"):
            value = f"Bearer {K1}" if name == "Authorization" else K1
            assert (await r.client.post(PATH, json=STREAM, headers={name: value})).status_code == 200
        for seen in r.prefill.seen:
            assert seen.headers["authorization"] == f"Bearer {K2}"
        for seen in r.decode.seen:
            assert "authorization" not in seen.headers
        for seen in (*r.prefill.seen, *r.decode.seen):
            assert K1 not in str(seen.headers) and K1.encode() not in seen.body
        assert K1 not in caplog.text and K2 not in caplog.text


@pytest.mark.parametrize("headers", [{}, bearer("wrong"), bearer(ADMIN), {"Authorization": f"Basic {K1}"}])
async def test_x8_without_a_valid_key_there_is_a_401_and_no_leg(data_path, headers):
    async with rig(data_path=data_path, api_keys=KEYS, admin_key=ADMIN) as r:
        for body in (BODY, BODY | {"model": "unknown"}, {"not": "valid"}):
            answer = await r.client.post(PATH, json=body, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-request-id"].startswith("req-")
            named = await r.client.post(PATH, json=body, headers=headers | {"X-Request-Id": "mine"})
            assert (named.status_code, named.headers["x-request-id"]) == (401, "mine")
        for path in ("/v1/models", "/nothing"):
            assert (await r.client.get(path, headers=headers)).status_code == 401
        for path in ("/healthz", "/readyz", "/metrics", "/docs"):
            assert (await r.client.get(path, headers=headers)).status_code == 200
        assert not r.prefill.seen and not r.decode.seen
        metrics = (await r.client.get("/metrics")).text
        assert 'code="invalid_api_key"' in metrics


async def test_admin_has_a_key_of_its_own(data_path):
    async with rig(data_path=data_path, api_keys=KEYS, admin_key=ADMIN) as r:
        statuses = [
            (await r.client.get("/admin/fleet", headers=headers)).status_code
            for headers in ({}, bearer(K1), bearer(ADMIN))
        ]
        assert statuses == [401, 401, 200]
        assert (await r.client.get("/v1/models", headers=bearer(K1))).status_code == 200
    async with rig(data_path=data_path, host="0.0.0.0") as r:
        assert (await r.client.get("/admin/fleet")).status_code == 401, "others could reach it, and it has no key"


async def test_keys_are_read_again_when_their_file_changes(data_path, tmp_path, monkeypatch):
    monkeypatch.setattr(watched, "LOOK_S", 0.01)
    path = tmp_path / "keys"
    path.write_text(KEYS[0])
    async with rig(data_path=data_path, api_key_file=str(path)) as r:

        async def status(key: str) -> int:
            return (await r.client.post(PATH, json=BODY, headers=bearer(key))).status_code

        assert (await status(K1), await status(K2)) == (200, 401)
        path.write_text(f"bob:{hashlib.sha256(K2.encode()).hexdigest()}  # instead of ann")
        async with asyncio.timeout(10):
            while await status(K2) != 200:
                await asyncio.sleep(0.01)
        assert await status(K1) == 401


async def test_h3_an_unauthorised_client_is_not_asked_for_its_body(data_path):
    async with rig(data_path=data_path, api_keys=KEYS) as r:
        wire = await Wire.to(r.port)
        wire.send(
            f"POST {PATH} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 2000000\r\n\r\n".encode()
        )
        answer = await wire.answer()
        assert (answer.status, answer.keep_alive) == (401, False)
        assert await wire.rest() == b""


async def test_a_refused_body_is_dropped_and_the_connection_stays_in_step(data_path):
    async with rig(data_path=data_path, api_keys=KEYS) as r:
        wire = await Wire.to(r.port)
        wire.send(post(PATH, BODY | {"pad": "x" * 500_000}) + post(PATH, BODY, f"Authorization: Bearer {K1}"))
        assert [(await wire.answer()).status for _ in range(2)] == [401, 200]


async def test_a23_h7_pages_of_an_allowed_origin_may_call(data_path):
    origin = {"Origin": UI}
    ask = origin | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    async with rig(data_path=data_path, api_keys=KEYS, cors_origins=(UI,), max_requests=1) as r:
        preflight = await r.client.options(PATH, headers=ask)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == UI
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
        stream = await r.client.post(PATH, json=STREAM, headers=origin | bearer(K1))
        assert stream.text.endswith("data: [DONE]\n\n")
        unauthorised = await r.client.post(PATH, json=BODY, headers=origin)
        unknown = await r.client.post(PATH, json=BODY | {"model": "x"}, headers=origin | bearer(K1))
        large = await r.client.post(PATH, content=b"x" * 17_000_000, headers=origin | bearer(K1))
        r.behave(r.prefill, delay_s=5.0)
        r.behave(r.decode, delay_s=5.0)
        running = asyncio.create_task(r.client.post(PATH, json=BODY, headers=bearer(K1)))
        await until(lambda: r.decode.num_open == 1)
        full = await r.client.post(PATH, json=BODY, headers=origin | bearer(K1))
        running.cancel()
        answers = (stream, unauthorised, unknown, large, full)
        assert [answer.status_code for answer in answers] == [200, 401, 404, 413, 503]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == UI
            assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
        other = await r.client.options(PATH, headers=ask | {"Origin": "http://evil.example"} | bearer(K1))
        assert other.status_code == 405 and "access-control-allow-origin" not in other.headers
        assert len(r.decode.seen) == 2, "no OPTIONS has reached an engine"


async def test_without_allowed_origins_there_is_no_cors(data_path):
    async with rig(data_path=data_path) as r:
        ask = {"Origin": UI, "Access-Control-Request-Method": "POST"}
        answers = [await r.client.options(PATH, headers=ask), await r.client.post(PATH, json=STREAM, headers=ask)]
        assert [answer.status_code for answer in answers] == [405, 200]
        assert not any(name.startswith("access-control") for answer in answers for name in answer.headers)


@pytest.mark.needs("openssl")
async def test_clients_are_served_over_tls_with_the_certificate_of_the_day(
    data_path, certificates, tmp_path, monkeypatch
):
    monkeypatch.setattr(watched, "LOOK_S", 0.01)
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def put(name: str) -> bytes:
        for source, target in zip(certificates.issue(name), (cert, key), strict=True):
            target.write_bytes(open(source, "rb").read())  # noqa: SIM115
        return ssl.PEM_cert_to_DER_cert(cert.read_text())

    first = put("first")
    trusting = ssl.create_default_context(cafile=certificates.authority)
    async with rig(data_path=data_path, tls_cert=str(cert), tls_key=str(key)) as r:

        async def shown() -> bytes:
            _, writer = await asyncio.open_connection("127.0.0.1", r.port, ssl=trusting)
            writer.close()
            return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)

        assert await shown() == first
        async with httpx.AsyncClient(base_url=f"https://127.0.0.1:{r.port}", verify=trusting) as client:
            assert (await client.post(PATH, json=BODY)).json()["choices"]
            r.behave(r.decode, num_events=2000, gap_s=0.0001)
            assert (await client.post(PATH, json=STREAM)).text.endswith("data: [DONE]\n\n")
        key.write_text("half written")
        await asyncio.sleep(0.05)
        assert await shown() == first
        second = put("second")
        async with asyncio.timeout(10):
            while await shown() != second:
                await asyncio.sleep(0.01)


@pytest.mark.needs("openssl")
async def test_clients_must_show_a_certificate_where_that_is_set(data_path, certificates):
    cert, key = certificates.issue("server")
    async with rig(data_path=data_path, tls_cert=cert, tls_key=key, tls_client_ca=certificates.authority) as r:
        nobody = ssl.create_default_context(cafile=certificates.authority)
        somebody = ssl.create_default_context(cafile=certificates.authority)
        somebody.load_cert_chain(*certificates.issue("client"))
        url = f"https://127.0.0.1:{r.port}/healthz"
        async with httpx.AsyncClient(verify=somebody) as client:
            assert (await client.get(url)).status_code == 200
        async with httpx.AsyncClient(verify=nobody) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(url)


@pytest.mark.needs("openssl")
async def test_engines_are_reached_over_mutual_tls(data_path, certificates):
    cert, key = certificates.issue("engine")
    tls = server_certificate(cert, key, certificates.authority).context

    def prepare(engine):
        engine.tls = tls

    own_cert, own_key = certificates.issue("router")
    shown = {"engine_ca": certificates.authority, "engine_cert": own_cert, "engine_cert_key": own_key}
    async with rig(prepare=prepare, data_path=data_path, **shown) as r:
        assert r.decode.url.startswith("https://")
        r.behave(r.decode, num_events=2000, gap_s=0.0001)
        for _ in range(2):
            assert (await r.client.post(PATH, json=STREAM)).text.endswith("data: [DONE]\n\n")
        assert r.parts.router.pool(r.decode.url).num_live == 1, "a connection is used again"
        assert (await r.client.post("/tokenize", json={"prompt": "hi"})).status_code == 200
        await r.come_to_rest()


@pytest.mark.needs("openssl")
async def test_an_engine_that_nobody_vouches_for_is_not_believed(data_path, certificates):
    async with rig(data_path=data_path, fleet_poll_s=30.0, attempts=1) as r:
        cert, key = certificates.issue("engine")
        r.decode.tls = server_certificate(cert, key, "").context
        await r.decode.stop()
        pool = r.parts.router.pool(await r.decode.start())
        r.parts.router._pools[r.parts.router.fleet.pools["m"].solos[0].instance.url] = pool
        answer = await r.client.post(PATH, json=BODY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "decode_unreachable")
        assert "TLS failed" in answer.json()["error"]["message"]
        assert not r.decode.seen
