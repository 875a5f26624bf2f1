from __future__ import annotations

import json

from engine_shim.serve.reply import Reply
from router.contract.errors import BadRequest, Draining


class Sent:
    def __init__(self):
        self.messages = []

    async def __call__(self, message):
        self.messages.append(message)

    @property
    def status(self):
        return self.messages[0]["status"]

    @property
    def headers(self):
        return dict(self.messages[0]["headers"])

    @property
    def body(self):
        return b"".join(message["body"] for message in self.messages[1:])


async def test_json_goes_out_whole():
    sent = Sent()
    await Reply(sent).json(b"{}", headers=((b"x-a", b"1"),))
    assert sent.status == 200
    assert sent.headers == {b"content-type": b"application/json", b"content-length": b"2", b"x-a": b"1"}
    assert sent.body == b"{}"
    assert [message.get("more_body") for message in sent.messages] == [None, False]


async def test_the_head_waits_for_the_first_event():
    sent = Sent()
    reply = Reply(sent)
    assert sent.messages == []
    await reply.events(b"one", last=False)
    await reply.events(b"two", last=True)
    assert sent.headers == {b"content-type": b"text/event-stream; charset=utf-8", b"cache-control": b"no-cache"}
    assert sent.body == b"onetwo"
    assert [message.get("more_body") for message in sent.messages] == [None, True, False]


async def test_an_early_error_is_a_status():
    sent = Sent()
    await Reply(sent).fail(Draining("Going."))
    assert sent.status == 503
    assert sent.headers[b"retry-after"] == b"1"
    assert json.loads(sent.body)["error"]["message"] == "Going."


async def test_a_late_error_is_the_last_event():
    sent = Sent()
    reply = Reply(sent)
    await reply.events(b"one", last=False)
    await reply.fail(BadRequest("No."))
    assert sent.status == 200
    event = sent.messages[-1]
    assert event["body"].startswith(b'data: {"error":{"message":"No."')
    assert event["body"].endswith(b"}\n\n")
    assert event["more_body"] is False


async def test_an_error_after_the_end_is_not_sent():
    sent = Sent()
    reply = Reply(sent)
    await reply.events(b"one", last=True)
    await reply.fail(BadRequest("No."))
    assert sent.body == b"one"
