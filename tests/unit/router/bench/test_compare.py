import asyncio
import dataclasses
import os
import signal

import pytest

from router.bench import compare
from router.bench.compare import Run, medians, ratios, set_ups_of
from router.bench.measures import Objectives, Record, Spread, summarize
from router.bench.report import comparison_tables
from router.bench.schedule import Span
from router.bench.workload import Measured, Workload
from router.cli.local_fleet import free_port
from router.cli.setup import EngineChoice, SetUp
from router.contract.errors import EngineDown
from router.contract.instance import Mode
from tests.support.stand_in_programs import engine, stand_in

EMPTY = summarize([Record(0, 0.0, 0.0, 1.0, (), 1, 0, 503, "no_pair")], Objectives())
WORK = Workload(2, 0, Span(5, 5), Span(2, 2), None, True, True, True, None, 30.0, Objectives())


def run(name, number, ttft_ms, rate=1.0):
    spread = Spread(ttft_ms, ttft_ms, ttft_ms, ttft_ms, ttft_ms, 1)
    return Run(name, number, Measured(rate, number, dataclasses.replace(EMPTY, ttft=spread, goodput_per_s=1.0), ()))


def test_set_ups_have_as_many_engines_with_as_many_threads():
    set_ups = set_ups_of("push,pull,local,monolithic", SetUp(EngineChoice(threads=3), prefill=1, decode=2))
    assert [setup.mode for setup in set_ups.values()] == [Mode.PUSH, Mode.PULL, Mode.LOCAL, Mode.LOCAL]
    assert {setup.num_engines for setup in set_ups.values()} == {3}
    assert {setup.threads_per_engine for setup in set_ups.values()} == {3}
    bare = set_ups_of("bare", SetUp())["bare"]
    assert (bare.mode, bare.store, bare.prefill, bare.decode) == (Mode.PUSH, "none", 1, 1)
    assert set_ups_of("push-whole", SetUp())["push-whole"].mode is Mode.PUSH
    assert [set_ups_of(name, SetUp())[name].engine.progressive for name in ("push", "push-whole")] == [True, False]
    assert (set_ups["monolithic"].prefill, set_ups["monolithic"].decode, set_ups["monolithic"].both) == (0, 0, 3)


def test_medians_are_over_rounds_and_by_rate():
    runs = [run("push", 0, 10), run("pull", 0, 40), run("push", 1, 30), run("push", 2, 20), run("pull", 1, 60)]
    runs.append(run("push", 0, 999, rate=2.0))
    found = medians(runs, 1.0)
    assert found["push"]["ttft_p50_ms"] == 20
    assert found["pull"]["ttft_p50_ms"] == 50
    assert ratios(found)["pull"]["ttft_p50_ms"] == 2.5
    assert ratios(found)["push"]["ttft_p50_ms"] == 1.0


def test_a_figure_that_a_round_lacks_has_no_median():
    runs = [run("push", 0, 10), Run("push", 1, Measured(1.0, 1, EMPTY, ()))]
    assert "ttft_p50_ms" not in medians(runs, 1.0)["push"]


def test_a_run_is_told_with_its_failures():
    assert compare._headline(Measured(1.0, 0, EMPTY, ())) == "1 requests/s  0/1 whole  failures: 1 x no_pair"
    assert compare.figures_of(EMPTY)["whole_percent"] == 0.0


def test_ratios_leave_zeros_out():
    assert ratios({"a": {"x": 0.0, "y": 2.0}, "b": {"x": 1.0, "y": 3.0}}) == {"a": {"y": 1.0}, "b": {"y": 1.5}}


def test_tables_have_a_column_for_each_set_up():
    text = comparison_tables({"push": {"ttft_p50_ms": 20.0}, "pull": {"ttft_p50_ms": 50.0, "e2e_p50_ms": 7.0}}, 1.0, 3)
    rows = [line.split() for line in text.splitlines()]
    assert ["Medians", "over", "3", "rounds", "at", "1", "requests/s"] in rows
    assert ["TTFT", "p50", "ms", "20.0", "50.0"] in rows
    assert ["E2E", "p50", "ms", "-", "7.0"] in rows
    assert ["TTFT", "p50", "ms", "1.00", "2.50"] in rows


async def test_rounds_are_interleaved_and_every_set_up_is_stopped(monkeypatch, tmp_path):
    order = []

    class Subject:
        def __init__(self, work, url, model):
            order.append((url, model))

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            order.append("left")

        async def measure(self, rate, seed, line):
            return Measured(rate, seed, EMPTY, ())

    monkeypatch.setattr(compare, "Subject", Subject)
    monkeypatch.setattr(compare.preflight, "check", lambda setup: None)
    stand_in(monkeypatch, engine("e"))
    setup = SetUp(port=free_port("127.0.0.1"))
    runs = await compare.compare({"a": setup, "b": setup}, WORK, [1.0, 2.0], range(7, 9), tmp_path)
    found = [(run.set_up, run.round, run.measured.rate_per_s, run.measured.seed) for run in runs]
    turns = ((7, "b"), (7, "a"), (8, "a"), (8, "b"))
    assert found == [(name, number, rate, number) for number, name in turns for rate in (1.0, 2.0)]
    assert order == [(setup.url, "stand-in"), "left"] * 4
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


async def test_an_engine_that_dies_under_load_ends_the_comparison(monkeypatch, tmp_path):
    pid_file = tmp_path / "pid"
    code = (
        "import os, threading\n"
        f"open({str(pid_file)!r}, 'w').write(str(os.getpid()))\n"
        'print(\'{"ready": true, "url": "http://engine"}\', flush=True)\n'
        "threading.Event().wait()\n"
    )

    class Subject:
        def __init__(self, work, url, model):
            pass

        async def __aenter__(self):
            return self

        async def __aexit__(self, *_):
            pass

        async def measure(self, rate, seed, line):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
            await asyncio.Event().wait()

    monkeypatch.setattr(compare.preflight, "check", lambda setup: None)
    monkeypatch.setattr(compare, "Subject", Subject)
    stand_in(monkeypatch, engine("e", code))
    with pytest.raises(EngineDown, match="e was ended by SIGKILL"):
        await compare.compare({"a": SetUp(port=free_port("127.0.0.1"))}, WORK, [1.0], range(1), tmp_path / "logs")
