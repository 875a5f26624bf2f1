from __future__ import annotations

import asyncio
import json

import pytest

from engine_shim.engine.port import Purpose
from engine_shim.serve import inference
from router.contract.errors import KVWaitTimeout, NoSeats
from router.contract.wire import PrefillHandoff
from tests.support.fake_driver import MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "t.1"}


def events(text):
    lines = text.removesuffix("\n\n").split("\n\n")
    return [line.removeprefix("data: ") for line in lines]


class Call:
    """One request over raw ASGI, whose client can leave."""

    def __init__(self, app, path, **fields):
        self.sent = []
        self.left = asyncio.Event()
        self.first_sent = asyncio.Event()
        self._body = json.dumps({"messages": HI, "prompt": "hi", **fields}).encode()
        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "root_path": ""}
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self):
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        self.sent.append(message)
        if message["type"] == "http.response.body":
            self.first_sent.set()

    @property
    def bodies(self):
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]


async def test_a_whole_chat(client, driver):
    answer = await client.post(CHAT, json={"model": MODEL, "messages": HI}, headers={"X-Request-Id": "r-1"})
    assert answer.json()["id"] == "chatcmpl-r-1"
    assert answer.json()["choices"][0]["message"]["content"] == "Hello wörld"
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    assert answer.headers["x-request-id"] == "r-1"
    assert driver.streams[0].closed
    assert driver.streams[0].deadline_for_s == 60.0


async def test_a_streamed_chat_is_one_id_one_role_and_an_end_mark(client):
    answer = await client.post(CHAT, json={"messages": HI, "stream": True, "max_tokens": 4})
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    *chunks, done = events(answer.text)
    chunks = [json.loads(chunk) for chunk in chunks]
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas) == "Hell"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 4 + ["length"]


async def test_several_prompts_and_repetitions_are_separate_sequences(client, driver):
    answer = await client.post(COMPLETIONS, json={"prompt": ["a", "b"], "n": 2, "max_tokens": 3, "seed": 5})
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2, 3]
    assert {choice["text"] for choice in answer.json()["choices"]} == {"Hel"}
    assert answer.json()["usage"]["prompt_tokens"] == 2
    assert answer.json()["usage"]["completion_tokens"] == 12
    asked = {(stream.request.prompt, stream.request.sampling.seed) for stream in driver.streams}
    assert asked == {((97,), 5), ((97,), 6), ((98,), 5), ((98,), 6)}
    assert all(stream.closed for stream in driver.streams)


async def test_streamed_choices_join_to_their_texts_and_share_one_end_mark(client):
    answer = await client.post(COMPLETIONS, json={"prompt": "a", "n": 3, "max_tokens": 5, "stream": True})
    *chunks, done = events(answer.text)
    texts = ["", "", ""]
    for chunk in map(json.loads, chunks):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert (texts, done) == (["Hello"] * 3, "[DONE]")


async def test_a_stop_string_ends_the_answer_and_is_named(client):
    answer = await client.post(COMPLETIONS, json={"prompt": "a", "stop": ["o w"]})
    choice = answer.json()["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == ("Hell", "stop", "o w")


async def test_a_prefill_leg_holds_and_answers_with_its_parameters(client, driver):
    driver.answer = {"remote_engine_id": "p@1", "remote_block_ids": [[1, 2]]}
    body = {"prompt": "hi", "max_tokens": 1, "kv_transfer_params": PREFILL}
    answer = await client.post(COMPLETIONS, json=body, headers={"X-Request-Deadline-Ms": "2500"})
    assert answer.json()["kv_transfer_params"] == driver.answer
    assert driver.handoffs == [PrefillHandoff("t.1")]
    assert driver.streams[0].request.purpose is Purpose.HOLD
    assert driver.streams[0].deadline_for_s == 2.5


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_the_driver_is_a_status(client, driver, stream):
    driver.refusal = NoSeats("Full.")
    answer = await client.post(CHAT, json={"messages": HI, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_seats")
    assert answer.headers["retry-after"] == "1"


async def test_when_one_of_several_is_refused_the_others_are_closed(client, driver):
    submit = driver.submit

    async def refuse_the_third(request, handoff, deadline_for_s):
        if len(driver.streams) == 2:
            raise NoSeats("Full.")
        return await submit(request, handoff, deadline_for_s)

    driver.submit = refuse_the_third
    answer = await client.post(COMPLETIONS, json={"prompt": "a", "n": 3})
    assert answer.status_code == 503
    assert [stream.closed for stream in driver.streams] == [True, True]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_a_failure_before_the_first_token_is_a_status(client, driver, stream, n):
    driver.failure, driver.fails_after = KVWaitTimeout("Late."), 0
    answer = await client.post(COMPLETIONS, json={"prompt": "a", "stream": stream, "n": n})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "kv_wait_timeout")
    assert all(each.closed for each in driver.streams)


@pytest.mark.parametrize("n", [1, 2])
async def test_a_failure_after_the_first_token_is_an_event_and_no_end_mark(client, driver, n):
    driver.failure, driver.fails_after = KVWaitTimeout("Late."), 3
    # The gate lets the first outputs reach the client before the failure.
    driver.num_open_outputs = 3
    asking = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a", "stream": True, "n": n}))
    await driver.waiting_at_gate.wait()
    await asyncio.sleep(0)
    await driver.open_gate()
    answer = await asking
    assert answer.status_code == 200
    *chunks, last = events(answer.text)
    assert len(chunks) >= 3
    assert json.loads(last)["error"]["code"] == "kv_wait_timeout"
    assert "[DONE]" not in answer.text
    assert all(each.closed for each in driver.streams)


async def test_a_bug_of_the_engine_is_a_500_and_a_stream_is_closed(client, driver):
    driver.failure, driver.fails_after = RuntimeError("secret"), 0
    answer = await client.post(COMPLETIONS, json={"prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "secret" not in answer.text
    assert driver.streams[0].closed


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stream_that_ends_without_a_reason_is_an_error_not_an_answer(client, driver, stream):
    complete = driver.outputs_of

    class Ends(list):
        def __getitem__(self, index):
            if index == 2:
                raise StopAsyncIteration
            return super().__getitem__(index)

    driver.outputs_of = lambda request: Ends(complete(request))
    answer = await client.post(COMPLETIONS, json={"prompt": "a", "stream": stream})
    assert "internal_error" in answer.text
    assert "[DONE]" not in answer.text
    assert answer.status_code == (200 if stream else 500)


async def test_the_head_waits_for_the_first_token_and_text_comes_as_it_is_made(app, driver):
    driver.num_open_outputs = 0
    call = Call(app, CHAT, stream=True, max_tokens=2)
    await driver.waiting_at_gate.wait()
    assert call.sent == []
    await driver.open_gate(1)
    await call.first_sent.wait()
    assert call.sent[0]["type"] == "http.response.start"
    assert call.bodies[0].count(b"data: ") == 2
    await driver.open_gate()
    await call.task
    assert len(call.bodies) == 2
    assert call.bodies[1].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("open_outputs", [0, 2])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_all_sequences_at_once(app, driver, n, open_outputs, stream):
    driver.num_open_outputs = open_outputs
    call = Call(app, COMPLETIONS, stream=stream, n=n)
    await driver.waiting_at_gate.wait()
    call.left.set()
    await call.task
    assert len(driver.streams) == n
    assert all(each.closed and not each.finished for each in driver.streams)
    assert len(asyncio.all_tasks()) == 1


async def test_a_client_that_leaves_during_submit_leaves_nothing(app, driver):
    entered, submit = asyncio.Event(), driver.submit

    async def second_hangs(request, handoff, deadline_for_s):
        if driver.streams:
            entered.set()
            await asyncio.Event().wait()
        return await submit(request, handoff, deadline_for_s)

    driver.submit = second_hangs
    call = Call(app, COMPLETIONS, n=2)
    await entered.wait()
    call.left.set()
    await call.task
    assert [stream.closed for stream in driver.streams] == [True]
    assert len(asyncio.all_tasks()) == 1


async def test_a_server_that_stops_ends_its_requests(app, driver):
    driver.num_open_outputs = 1
    call = Call(app, COMPLETIONS, stream=True)
    await call.first_sent.wait()
    call.task.cancel()
    await asyncio.wait([call.task])
    assert call.task.cancelled()
    assert driver.streams[0].closed


async def test_a_long_body_is_read_off_the_loop(client, driver, monkeypatch):
    on_threads = []
    to_thread = asyncio.to_thread

    async def spy(function, *args):
        on_threads.append(function.__name__)
        return await to_thread(function, *args)

    monkeypatch.setattr(inference, "INLINE_BODY_BYTES", 100)
    monkeypatch.setattr(asyncio, "to_thread", spy)
    for padding in ("", "x" * 100):
        answer = await client.post(COMPLETIONS, json={"prompt": "a", "user": padding})
        assert answer.status_code == 200
    assert on_threads == ["read"]


async def test_requests_are_counted_by_how_they_end(app, client, driver):
    await client.post(COMPLETIONS, json={"prompt": "a"})
    await client.post(COMPLETIONS, json={"prompt": ""})
    driver.num_open_outputs = 0
    call = Call(app, COMPLETIONS)
    await driver.waiting_at_gate.wait()
    call.left.set()
    await call.task
    text = (await client.get("/metrics")).text
    who = 'instance_id="fake",role="both"'
    for code in ("ok", "bad_request", "client_gone"):
        assert f'tandem_shim_requests_total{{code="{code}",endpoint="completion",{who}}} 1.0' in text
    assert f"tandem_shim_prompt_tokens_total{{{who}}} 1.0" in text
    assert f"tandem_shim_generation_tokens_total{{{who}}} 13.0" in text
