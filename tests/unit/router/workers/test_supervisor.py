import signal
import subprocess
import sys

import pytest

WORK = {
    "waits": "signal.pause() or 0",
    "fails": "1",
    "unusable": "2",
    "breaks": "1 / 0",
}


def program(work: str) -> list[str]:
    text = f"""
import logging, signal, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
from router.contract.errors import WorkersDie
from router.workers import respawn
from router.workers.supervisor import Supervisor
respawn.FIRST_BACK_OFF_S = 0.0
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    sys.exit(Supervisor(2, lambda slot: {WORK[work]}).run())
except WorkersDie as error:
    print(error.message)
    sys.exit(9)
"""
    return [sys.executable, "-c", text]


@pytest.mark.parametrize(("work", "how"), [("fails", "status 1"), ("breaks", "status 1")])
def test_a_crash_loop_ends_with_a_sentence(work, how):
    ended = subprocess.run(program(work), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 9
    assert f"has died 6 times in a row soon after its start (last: {how})" in ended.stdout
    assert ("ZeroDivisionError" in ended.stderr) == (work == "breaks")


def test_what_the_operator_must_change_ends_at_once():
    ended = subprocess.run(program("unusable"), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "starts in" not in ended.stdout


def test_a_killed_worker_is_replaced_and_signals_are_passed_on():
    with subprocess.Popen(program("waits"), stdout=subprocess.PIPE, text=True) as supervisor:
        pids = [int(supervisor.stdout.readline().split()[-1]) for _ in range(2)]
        signal_to(pids[0], signal.SIGKILL)
        assert "(signal 9)" in supervisor.stdout.readline()
        assert supervisor.stdout.readline().startswith("worker 0 runs as process")
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0


def test_workers_end_with_a_supervisor_that_is_killed():
    with subprocess.Popen(program("waits"), stdout=subprocess.PIPE, text=True) as supervisor:
        supervisor.stdout.readline()
        supervisor.stdout.readline()
        supervisor.kill()
        assert supervisor.stdout.read() == ""  # ends once nobody has it open any more


def signal_to(pid: int, number: int) -> None:
    import os

    os.kill(pid, number)
