import asyncio
import math

import pytest

from router.bench.connection import Client, Target
from router.bench.load import Dialect, Load
from router.bench.schedule import Due, Span, poisson
from tests.support.openai_stand_in import OpenAIStandIn


async def run(server, schedule, *, dialect=None, cap=None, timeout_s=30.0, on_progress=lambda ended: None):
    client = Client(Target.parse(server.url))
    load = Load(client, dialect or Dialect("m"), timeout_s=timeout_s, cap=cap)
    records = await load.run(schedule, ["a b c"] * len(schedule), on_progress)
    client.close()
    return records


def at(*seconds, output_tokens=4):
    return [Due(index, at_s, 3, output_tokens) for index, at_s in enumerate(seconds)]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_whole_answers_are_recorded(chat, stream):
    async with OpenAIStandIn() as server:
        (record,) = await run(server, at(0), dialect=Dialect("m", chat, stream))
    assert record.is_whole
    assert (record.status, record.output_tokens, record.prompt_tokens) == (200, 4, 10 if chat else 3)
    assert len(record.output_at_s) == (4 if stream else 1)
    assert list(record.output_at_s) == sorted(record.output_at_s)
    assert record.due_s <= record.sent_s <= record.output_at_s[0] <= record.output_at_s[-1] <= record.ended_s


async def test_the_dialect_decides_the_body():
    async with OpenAIStandIn() as server:
        await run(server, at(0), dialect=Dialect("m", chat=False, stream=False, ignore_eos=False))
        await run(server, at(0))
    assert server.requests[0][2] == {"model": "m", "max_tokens": 4, "temperature": 0, "prompt": "a b c"}
    assert server.requests[1][2] == {
        "model": "m",
        "max_tokens": 4,
        "temperature": 0,
        "messages": [{"role": "user", "content": "a b c"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


async def test_the_schedule_does_not_wait_for_answers():
    everyone = asyncio.Event()

    async def answer_when_all_are_here(server, writer, asked):
        if server.in_flight == 5:
            everyone.set()
        await everyone.wait()
        await server.proper(writer, asked)

    async with OpenAIStandIn(script=answer_when_all_are_here) as server:
        records = await run(server, at(0, 0, 0.01, 0.02, 0.03))
    assert all(record.is_whole for record in records)
    assert [record.due_s for record in records] == [0, 0, 0.01, 0.02, 0.03]


async def test_a_cap_holds_requests_back_and_their_latency_shows_it():
    async with OpenAIStandIn(first_s=0.02) as server:
        records = await run(server, at(0, 0, 0, 0), cap=1)
    assert server.most_in_flight == 1
    sent = sorted(record.sent_s for record in records)
    assert sent[-1] >= 0.06
    last = max(records, key=lambda record: record.sent_s)
    assert last.ttft_s >= last.sent_s - last.due_s + 0.02


async def test_progress_counts_to_the_end():
    seen = []
    async with OpenAIStandIn() as server:
        await run(server, at(0, 0, 0), on_progress=seen.append)
    assert seen == [1, 2, 3]


async def refuse(server, writer, asked):
    server.whole(writer, {"error": {"code": "no_pair", "type": "server_error"}}, "503 Service Unavailable")


async def refuse_in_words(server, writer, asked):
    writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\n\r\noops")


async def fail_midway(server, writer, asked):
    server.begin(writer)
    server.event(writer, {"choices": [{"delta": {"content": "a"}}]})
    server.event(writer, {"error": {"code": "peer_gone"}})
    server.piece(writer, b"")


async def end_early(server, writer, asked):
    server.begin(writer)
    server.event(writer, {"choices": [{"delta": {"content": "a"}}]})
    server.piece(writer, b"")


async def break_off(server, writer, asked):
    server.begin(writer)
    server.event(writer, {"choices": [{"delta": {"content": "a"}}]})
    writer.close()


async def speak_nonsense(server, writer, asked):
    server.begin(writer)
    server.piece(writer, b"data: {nonsense\n\ndata: [DONE]\n\n")
    server.piece(writer, b"")


async def say_nothing(server, writer, asked):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("script", "status", "failure"),
    [
        (refuse, 503, "no_pair"),
        (refuse_in_words, 502, "http_502"),
        (fail_midway, 200, "peer_gone"),
        (end_early, 200, "stream_cut"),
        (break_off, 200, "leg_broken"),
        (speak_nonsense, 200, "not_json"),
        (say_nothing, 0, "leg_timeout"),
    ],
)
async def test_failures_are_told_by_their_code(script, status, failure):
    async with OpenAIStandIn(script=script) as server:
        (record,) = await run(server, at(0), timeout_s=0.2 if script is say_nothing else 30)
    assert (record.status, record.failure) == (status, failure)
    assert not record.is_whole


async def test_one_failure_leaves_the_others_alone():
    async def refuse_the_short(server, writer, asked):
        await (refuse if asked["max_tokens"] == 1 else OpenAIStandIn.proper)(server, writer, asked)

    async with OpenAIStandIn(script=refuse_the_short) as server:
        records = await run(server, [Due(i, 0.0, 3, i % 2 + 1) for i in range(20)])
    assert [record.is_whole for record in records] == [index % 2 == 1 for index in range(20)]


async def test_a_burst_is_served_whole():
    async with OpenAIStandIn() as server:
        records = await run(server, poisson(math.inf, 200, (Span(3, 3), Span(8, 8)), 0))
    assert sum(record.is_whole for record in records) == 200
    assert sum(record.output_tokens for record in records) == 1600
