import json

import pytest

from router.api.apart import Apart


async def ask(path, port):
    """Status and body of `path` asked on `port` where 9 is the operators'."""
    sent = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    headers = [(b"x-request-id", b"mine")]
    await Apart(app, 9)({"type": "http", "path": path, "server": ("h", port), "headers": headers}, None, send)
    assert port == 9 or sent[0]["status"] == 200 or headers[0] in sent[0]["headers"]
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


@pytest.mark.parametrize("path", ["/metrics", "/admin/fleet", "/ui", "/ui/app.js", "/metrics/"])
async def test_operators_paths_are_on_their_port_only(path):
    status, body = await ask(path, 8)
    assert (status, json.loads(body)["error"]["code"]) == (404, "not_found")
    assert (await ask(path, 9))[0] == 200


@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/metricsx", "/uix", "/"])
async def test_everything_else_is_everywhere(path):
    assert [(await ask(path, port))[0] for port in (8, 9)] == [200, 200]
