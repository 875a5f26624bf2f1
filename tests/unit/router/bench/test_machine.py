import os
import subprocess

from router.bench import machine


def test_the_machine_is_the_one_that_runs_this():
    found = machine.describe_machine()
    assert found.cores == len(os.sched_getaffinity(0))
    assert found.memory_bytes > 1 << 28
    assert 0 <= found.load_average < 10_000
    assert found.packages["msgspec"].count(".") == 2
    assert "a-package-that-is-absent" not in found.packages


def test_a_machine_is_busy_when_others_take_half_of_its_cores(monkeypatch):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (1.0, 0.0, 0.0))
    assert not machine.describe_machine().is_busy
    monkeypatch.setattr(machine.os, "getloadavg", lambda: (1.1, 0.0, 0.0))
    assert machine.describe_machine().is_busy


def test_the_commit_is_that_of_the_repository_and_marks_changes(tmp_path, monkeypatch):
    def git(*words):
        identity = ("-c", "user.name=n", "-c", "user.email=e")
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(machine, "_ROOT", tmp_path)
    assert machine.describe_machine().commit is None
    git("init", "-q")
    (tmp_path / "f").write_text("1")
    git("add", "f")
    git("commit", "-q", "-m", "x")
    head = git("rev-parse", "HEAD")
    assert machine.describe_machine().commit == head
    (tmp_path / "f").write_text("2")
    assert machine.describe_machine().commit == head + "+"
