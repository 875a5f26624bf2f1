import dataclasses
import io
import math

import pytest

from router.bench.measures import Objectives
from router.bench.schedule import Span
from router.bench.workload import Subject, Workload, add_workload_flags, workload_of
from router.cli.flags import new_parser
from router.cli.terminal import LiveLine
from router.contract.errors import BadSettings, LegUnreachable, ModelUnknown, Unauthorized
from tests.support.openai_stand_in import OpenAIStandIn

WORK = Workload(6, 2, Span(20, 20), Span(3, 3), None, True, True, True, None, 30.0, Objectives())


def parse(*words):
    parser = new_parser("x", "")
    add_workload_flags(parser)
    return workload_of(parser.parse_args(words))


def test_flags_become_a_workload():
    assert parse("--no-stream", "--keep-eos", "--endpoint", "completions", "--slo-ttft-ms", "5") == Workload(
        num_requests=100,
        warmup=4,
        input_tokens=Span(512, 512),
        output_tokens=Span(64, 64),
        prompts=None,
        chat=False,
        stream=False,
        ignore_eos=False,
        concurrency_cap=None,
        timeout_s=600.0,
        objectives=Objectives(5.0, None),
    )


@pytest.mark.parametrize(
    "words", [("--requests", "0"), ("--warmup", "-1"), ("--timeout-s", "nan"), ("--concurrency-cap", "-2")]
)
def test_counts_out_of_range_are_refused(words):
    with pytest.raises(BadSettings):
        parse(*words)


async def measure(server, work, seed=0, **how):
    async with Subject(work, server.url, **how) as subject:
        return await subject.measure(math.inf, seed, LiveLine(io.StringIO()))


async def test_warm_up_requests_do_not_count():
    async with OpenAIStandIn() as server:
        measured = await measure(server, WORK)
    assert len(server.requests) == 8
    assert measured.summary.num_whole == 6
    assert [record.index for record in measured.records] == list(range(6))
    assert {record.prompt_tokens for record in measured.records} == {20}


async def test_the_seed_decides_the_prompts():
    async def prompts(seed):
        async with OpenAIStandIn() as server:
            await measure(server, dataclasses.replace(WORK, concurrency_cap=1), seed)
        return [asked["messages"][0]["content"] for _, _, asked in server.requests]

    first = await prompts(1)
    assert await prompts(1) == first
    assert not set(await prompts(2)) & set(first)
    assert len(set(first)) == 8


async def test_model_and_tokenizer_are_asked_of_the_server():
    async with OpenAIStandIn() as server, Subject(WORK, server.url) as subject:
        assert subject.model == "stand-in"
        assert not subject.counts_words
    async with OpenAIStandIn(tokenizes=False) as server, Subject(WORK, server.url, "given") as subject:
        assert subject.model == "given"
        assert subject.counts_words


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [({"data": []}, "200 OK", ModelUnknown), ({}, "401 No", Unauthorized), ({}, "500 No", ModelUnknown)],
)
async def test_a_server_that_lists_no_model(monkeypatch, answer, status, error):
    async def respond(writer, *_):
        server.whole(writer, answer, status)

    async with OpenAIStandIn() as server:
        monkeypatch.setattr(server, "_answer", respond)
        with pytest.raises(error):
            await measure(server, WORK)


async def test_nobody_there_is_one_sentence():
    with pytest.raises(LegUnreachable, match=r"^http://127\.0\.0\.1:9 does not answer \(ConnectError\); start it"):
        async with Subject(WORK, "http://127.0.0.1:9"):
            pass
