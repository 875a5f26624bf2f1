import os
import socket
from pathlib import Path

import pytest

from router.cli.local_fleet import LocalFleet, free_port
from router.cli.setup import SetUp
from router.contract.errors import DeploymentError, EngineDown, RouterError, StoreDown
from tests.support.stand_in_programs import engine, stand_in


@pytest.fixture
def setup():
    return SetUp(port=free_port("127.0.0.1"))


async def test_start_returns_once_all_are_ready_and_tells_of_each(monkeypatch, tmp_path, setup):
    stand_in(monkeypatch, engine("prefill-0"), engine("decode-0"))
    fleet = LocalFleet(setup, tmp_path)
    told = []
    try:
        await fleet.start(lambda phase, fact: told.append((phase, fact)))
        assert fleet.model == "stand-in"
        assert told[0] == ("store", fleet.store_url)
        assert sorted(told[1:3]) == [("decode-0", "http://engine"), ("prefill-0", "http://engine")]
        assert told[3:] == [("router", setup.url)]
        assert Path(fleet.store_url.removeprefix("unix://")).is_socket()
        pids = [child.process.pid for child in fleet.children.running]
        assert len(pids) == 3
    finally:
        await fleet.aclose()
    assert not Path(fleet.store_url.removeprefix("unix://")).exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_an_engine_that_refuses_its_settings_ends_the_start(monkeypatch, tmp_path, setup):
    stand_in(
        monkeypatch,
        engine("prefill-0"),
        engine("decode-0", "import sys; print('No CUDA here; use --device cpu.', file=sys.stderr); sys.exit(2)"),
    )
    fleet = LocalFleet(setup, tmp_path)
    try:
        with pytest.raises(DeploymentError, match=r"^decode-0: No CUDA here; use --device cpu\.$"):
            await fleet.start(lambda phase, fact: None)
    finally:
        await fleet.aclose()


async def test_a_router_that_does_not_find_the_engines_is_given_up(monkeypatch, tmp_path, setup):
    stranger = "import json, threading; print(json.dumps({'ready': True, 'url': 'http://stranger'}), flush=True); "
    stand_in(monkeypatch, engine("prefill-0", stranger + "threading.Event().wait()"))
    monkeypatch.setattr("router.cli.local_fleet.ROUTER_WITHIN_S", 0.5)
    fleet = LocalFleet(setup, tmp_path)
    try:
        with pytest.raises(RouterError, match="does not find all engines"):
            await fleet.start(lambda phase, fact: None)
    finally:
        await fleet.aclose()


async def test_a_store_that_dies_ends_the_start(monkeypatch, tmp_path, setup):
    stand_in(monkeypatch, engine("prefill-0", "import time; time.sleep(600)"))
    fleet = LocalFleet(setup, tmp_path)

    def kill_store(phase, fact):
        if phase == "store":
            os.kill(fleet._store.pid, 9)

    try:
        with pytest.raises(StoreDown, match=r"store .* has ended on its own"):
            await fleet.start(kill_store)
    finally:
        await fleet.aclose()


async def test_a_given_store_is_not_started(monkeypatch, tmp_path, setup):
    seen = []
    monkeypatch.setattr(
        "router.cli.local_fleet.engine_programs",
        lambda setup, store_url: seen.append(store_url) or (engine("p", "import sys; sys.exit(1)"),),
    )
    monkeypatch.setattr("router.cli.local_fleet.router_program", lambda setup, store_url: engine("router"))
    fleet = LocalFleet(SetUp(port=setup.port, store="redis://h:1"), tmp_path)
    try:
        with pytest.raises(EngineDown):
            await fleet.start(lambda phase, fact: None)
    finally:
        await fleet.aclose()
    assert seen == ["redis://h:1"]


def test_a_free_port_can_be_bound():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port("127.0.0.1")))
