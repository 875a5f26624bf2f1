import pytest

from router.api.cors import Cors

UI = b"http://ui.example"
ASKS = [(b"access-control-request-method", b"POST"), (b"access-control-request-headers", b"authorization,content-type")]


async def call(origins, method="POST", headers=(), kind="http"):
    sent, reached = [], []

    async def app(scope, receive, send):
        reached.append(scope)
        await send({"type": "http.response.start", "status": 401, "headers": [(b"a", b"1")]})
        await send({"type": "http.response.body", "body": b"x"})

    async def send(message):
        sent.append(message)

    await Cors(app, origins)({"type": kind, "method": method, "headers": list(headers)}, None, send)
    return sent[0]["status"], dict(sent[0]["headers"]), len(reached)


@pytest.mark.parametrize(("origins", "named"), [([UI.decode()], UI), (["*"], b"*")])
async def test_answers_name_an_allowed_origin_whatever_they_are(origins, named):
    status, headers, reached = await call(origins, headers=[(b"origin", UI)])
    assert (status, reached, headers[b"a"]) == (401, 1, b"1")
    assert headers[b"access-control-allow-origin"] == named
    assert b"X-Request-Id" in headers[b"access-control-expose-headers"]
    assert headers[b"vary"] == b"Origin"


async def test_a_preflight_is_answered_here():
    status, headers, reached = await call([UI.decode()], "OPTIONS", [(b"origin", UI), *ASKS])
    assert (status, reached) == (204, 0)
    assert headers[b"access-control-allow-origin"] == UI
    assert b"POST" in headers[b"access-control-allow-methods"]
    assert headers[b"access-control-allow-headers"] == b"authorization,content-type"


@pytest.mark.parametrize("headers", [[(b"origin", b"http://evil.example"), *ASKS], [(b"origin", b"null")], []])
async def test_others_are_served_without_being_named(headers):
    status, answered, reached = await call([UI.decode()], "OPTIONS", headers)
    assert (status, reached) == (401, 1)
    assert not any(name.startswith(b"access-control") for name in answered)


async def test_options_that_are_no_preflight_and_the_lifespan_pass():
    assert (await call(["*"], "OPTIONS", [(b"origin", UI)]))[2] == 1
    assert (await call(["*"], kind="lifespan"))[2] == 1
