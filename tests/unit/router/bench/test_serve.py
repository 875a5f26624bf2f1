import asyncio
import json
import threading

import pytest

from router.bench import serve
from router.bench.compare import Run
from router.bench.measures import Record, summarize
from router.bench.workload import Measured
from router.contract.errors import BadSettings
from tests.support.openai_stand_in import OpenAIStandIn


@pytest.fixture
def start():
    """Start stand-ins on a loop of their own, since the command runs its own loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    started = []

    def begin(**how):
        server = OpenAIStandIn(**how)
        started.append(server)
        return asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)

    yield begin
    for server in started:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(30)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


SMALL = ["--requests", "5", "--warmup", "2", "--rate", "inf", "--input-tokens", "20", "--output-tokens", "3"]


def test_a_load_is_printed_and_written(start, tmp_path, capsys):
    server, out = start(), tmp_path / "out.json"
    assert serve.main(["--url", server.url, *SMALL, "--json", str(out), "--records", "--slo-ttft-ms", "60000"]) == 0
    printed = capsys.readouterr().out
    assert "stand-in at inf requests/s: 5 of 5 requests answered whole" in printed
    assert "tokens a request: 20.0 in, 3.0 out" in printed
    written = json.loads(out.read_text())
    (load,) = written["loads"]
    assert load["summary"]["num_whole"] == 5
    assert load["summary"]["goodput_per_s"] == load["summary"]["requests_per_s"] > 0
    assert [record["output_tokens"] for record in load["records"]] == [3] * 5
    assert written["machine"]["cores"] >= 1
    assert written["workload"]["input_tokens"] == {"low": 20, "high": 20}
    assert len(server.requests) == 7


def test_each_rate_is_a_load_of_its_own(start, capsys):
    server = start()
    assert serve.main(["--url", server.url, *SMALL, "--rate", "200,inf"]) == 0
    printed = capsys.readouterr().out
    assert "at 200 requests/s" in printed
    assert "at inf requests/s" in printed
    assert len(server.requests) == 14


def test_prompts_of_a_file_are_used_in_turn(start, tmp_path):
    server, prompts = start(tokenizes=False), tmp_path / "p.txt"
    prompts.write_text("one\ntwo\n")
    flags = ["--prompts", str(prompts), "--warmup", "0", "--endpoint", "completions", "--concurrency-cap", "1"]
    assert serve.main(["--url", server.url, *SMALL, *flags]) == 0
    assert [asked["prompt"] for _, _, asked in server.requests] == ["one", "two", "one", "two", "one"]


def test_a_server_without_tokenizer_is_mentioned(start, capsys):
    server = start(tokenizes=False)
    assert serve.main(["--url", server.url, *SMALL]) == 0
    assert "prompt lengths are words" in capsys.readouterr().out


def test_a_key_is_sent_from_flag_or_environment(start, monkeypatch):
    server = start()
    serve.main(["--url", server.url, *SMALL, "--api-key", "one"])
    monkeypatch.setenv("OPENAI_API_KEY", "two")
    serve.main(["--url", server.url, *SMALL])
    assert [fields.get("authorization") for _, fields, _ in server.requests] == ["bearer one"] * 7 + ["bearer two"] * 7


def test_a_comparison_is_printed_and_written(monkeypatch, tmp_path, capsys):
    asked = []

    async def compare(set_ups, work, rates, rounds, logs):
        asked.append((list(set_ups), work.num_requests, rates, list(rounds)))
        record = Record(0, 0.0, 0.0, 1.0, (0.1, 0.2), 20, 3, 200)
        return [
            Run(name, number, Measured(rate, number, summarize([record], work.objectives), (record,)))
            for number in rounds
            for name in set_ups
            for rate in rates
        ]

    monkeypatch.setattr(serve, "compare", compare)
    out = tmp_path / "out.json"
    flags = ["--compare", "pull,push", "--rounds", "2", "--seed", "5", "--rate", "1,2", "--json", str(out)]
    assert serve.main([*SMALL, *flags]) == 0
    assert asked == [(["pull", "push"], 5, [1.0, 2.0], [5, 6])]
    printed = capsys.readouterr().out
    assert printed.count("Divided by pull") == 2
    assert "Medians over 2 rounds at 1 requests/s" in printed
    written = json.loads(out.read_text())
    assert written["set_ups"]["push"]["mode"] == "push"
    assert len(written["runs"]) == 8
    assert "records" not in written["runs"][0]
    assert written["medians"][0]["of"]["push"]["ttft_p50_ms"] == pytest.approx(100)
    assert written["ratios"][1]["of"]["push"]["ttft_p50_ms"] == 1.0


def test_no_whole_answer_is_status_1_and_tells_why(start, capsys):
    async def refuse(server, writer, asked):
        server.whole(writer, {"error": {"code": "no_pair"}}, "503 Service Unavailable")

    server = start(script=refuse)
    assert serve.main(["--url", server.url, *SMALL]) == 1
    assert "failures: 5 x no_pair" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flags",
    [
        ["--requests", "0"],
        ["--warmup", "-1"],
        ["--concurrency-cap", "-1"],
        ["--timeout-s", "0"],
        ["--rate", "1,x"],
        ["--input-tokens", "9-1"],
        ["--url", "nothing"],
        ["--json", "no/such/folder/out.json"],
        ["--compare", "push,pish"],
        ["--compare", "push,push"],
    ],
)
def test_wrong_flags_are_refused_before_anything_is_sent(flags):
    with pytest.raises(BadSettings):
        serve.main(flags)
