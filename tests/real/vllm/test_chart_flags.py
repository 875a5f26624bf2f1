"""vLLM's own parser takes the arguments with which the chart's examples start it."""

import json
import os
import subprocess

import pytest

from tests.support.charts import EXAMPLES, render
from tests.support.source_tree import ROOT
from tests.support.vllm_processes import FOLDER

pytestmark = pytest.mark.needs("vllm", "chart")


def lines():
    for example in EXAMPLES:
        for template in render(example).pods().values():
            for one in template["spec"]["containers"]:
                command = one.get("command", [])
                if "vllm" in command:
                    group = ["--data-parallel-address=leader", "--data-parallel-start-rank=8"]
                    yield [*one["args"], *(group if command[0] == "/bin/sh" else [])]


def refusals(of):
    program = ROOT / "tests" / "support" / "vllm_flags.py"
    env = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [FOLDER / "env" / "bin" / "python", program],
        input=json.dumps(of),
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in done.stdout.splitlines() if line.startswith("REFUSALS ")]
    assert told, done.stderr[-2000:]
    return json.loads(told[0].removeprefix("REFUSALS "))


def test_every_argument_is_known():
    wanted = list(lines())
    assert len(wanted) == 4
    found = refusals([*wanted, [*wanted[0], "--kv-transfer-confg={}"]])
    assert found[:-1] == [None] * 4
    assert "unrecognized arguments" in found[-1]
