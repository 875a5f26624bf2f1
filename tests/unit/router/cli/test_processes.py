import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from router.cli.processes import Children, Program
from router.contract.errors import BadSettings, DeploymentError, EngineDown, RouterError, StoreDown

READY = "import json, time; print(json.dumps({'ready': True, 'url': 'http://x'}), flush=True); "
STAY = "time.sleep(600)"


def program(code, name="child", **more):
    return Program(name, (sys.executable, "-c", code), **more)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.fixture
async def children(tmp_path):
    group = Children(tmp_path / "logs")
    yield group
    await group.aclose(grace_s=5)


async def test_the_ready_line_is_handed_over_and_logged(children, tmp_path):
    child = await children.start(program("print('hello', flush=True); " + READY + STAY))
    assert await children.guard(asyncio.wait_for(child.ready, 30)) == {"ready": True, "url": "http://x"}
    assert child.log_path == tmp_path / "logs" / "child.log"
    await children.aclose()
    assert child.log_path.read_text() == 'hello\n{"ready": true, "url": "http://x"}\n'


@pytest.mark.parametrize("line", ["{", "[1]", '{"ready": false}', '{"ready": 1}', "ready"])
async def test_other_lines_do_not_count_as_ready(children, line):
    child = await children.start(program(f"print({line!r})"))
    with pytest.raises(EngineDown):
        await children.guard(asyncio.wait_for(child.ready, 30))


async def test_a_death_cancels_the_guarded_work_and_tells_the_last_lines(children):
    cancelled = asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    code = "import sys; [print(i, file=sys.stderr) for i in range(30)]; sys.exit(3)"
    await children.start(program(code, name="p-0", failure=RouterError))
    with pytest.raises(RouterError) as died:
        await children.guard(work())
    assert cancelled.is_set()
    assert "p-0 ended with status 3" in died.value.message
    assert died.value.message.endswith("".join(f"\n  | {i}" for i in range(18, 30)))


async def test_status_2_is_the_childs_own_sentence(children):
    await children.start(
        program("import sys; print('noise\\nNo model there; give another.', file=sys.stderr); sys.exit(2)")
    )
    with pytest.raises(DeploymentError) as died:
        await children.guard(asyncio.Event().wait())
    assert died.value.message == "child: No model there; give another."


async def test_a_killed_child_is_told_by_its_signal(children):
    child = await children.start(program(READY + STAY))
    await child.ready
    child.process.kill()
    with pytest.raises(EngineDown, match="was ended by SIGKILL"):
        await children.guard(asyncio.Event().wait())


async def test_guard_returns_the_result_and_passes_errors_on(children):
    async def fails():
        raise BadSettings("no")

    assert await children.guard(asyncio.sleep(0, result=5)) == 5
    with pytest.raises(BadSettings):
        await children.guard(fails())


async def test_a_missing_program_leaves_nothing_behind(children):
    with pytest.raises(FileNotFoundError):
        await children.start(Program("x", ("/nonexistent/program",)))


async def test_closing_stops_in_reverse_order(tmp_path):
    children = Children(tmp_path)
    order = tmp_path / "order"
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        f"    open({str(order)!r}, 'a').write(sys.argv[1])\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('{\"ready\": true}', flush=True)\n"
        "time.sleep(600)\n"
    )
    for name in "abc":
        child = await children.start(Program(name, (sys.executable, "-c", code, name)))
        await child.ready
    await children.aclose()
    assert order.read_text() == "cba"


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path):
    children = Children(tmp_path)
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + READY + STAY
    child = await children.start(program(code))
    await child.ready
    await children.aclose(grace_s=0.2)
    assert child.process.returncode == -signal.SIGKILL


async def test_children_have_their_own_process_group_in_our_session(children):
    child = await children.start(program(READY + STAY))
    await child.ready
    assert os.getpgid(child.process.pid) == child.process.pid
    assert os.getsid(child.process.pid) == os.getsid(0)


async def test_an_adopted_process_counts_like_a_child(children):
    adopted = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    children.adopt("store", adopted.pid, StoreDown)
    adopted.kill()
    with pytest.raises(StoreDown, match=r"store \(pid \d+\) has ended on its own"):
        await children.guard(asyncio.Event().wait())
    adopted.wait()


def test_children_die_with_a_killed_parent(tmp_path):
    code = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from router.cli.processes import Children, Program\n"
        "async def main():\n"
        f"    children = Children(Path({str(tmp_path)!r}))\n"
        f"    child = await children.start(Program('c', (sys.executable, '-c', {READY + STAY!r})))\n"
        "    await child.ready\n"
        "    print(child.process.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    descriptor = os.pidfd_open(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    signal_seen, _, _ = select.select([descriptor], [], [], 20)
    os.close(descriptor)
    assert signal_seen
    assert not is_running(pid)
