from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from multiprocessing import Pipe

import pytest
import torch

from engine_shim.engine.port import ExpertRankLoad
from engine_shim.engine.ranks import processes
from engine_shim.engine.ranks.messages import Compute, Computed, Failed, FromRank, Joining, Ready, Start
from engine_shim.engine.ranks.processes import RankProcesses, await_end, limit_sends, reap_group
from engine_shim.engine.ranks.shared_memory import SharedMemory, share_memory
from engine_shim.engine.reference.expert_share import ExpertShare
from engine_shim.engine.reference.settings import ReferenceSettings
from router.contract.errors import BadSettings, RankGone
from router.contract.kv import KVLayout

CPU = torch.device("cpu")
JOINING, READY = Joining(b"", 1, 0), Ready({})
NO_ROOM = Failed("There is no room; lower max_tokens.", by_setup=True)


class Scripted(RankProcesses):
    """Two ranks that have said everything beforehand, anew at each start."""

    def __init__(self, *starts: tuple[FromRank, ...]) -> None:
        settings = ReferenceSettings("m", num_ranks=2)
        plan = Start(0, "g", ExpertShare(2), settings, CPU, KVLayout(1, 1, 1, 16, 1, "float32"), 0, 64)
        super().__init__(plan, share_memory("test", 64, CPU), (CPU, CPU))
        self.starts = list(starts)

    def _spawn(self) -> None:
        said, self.theirs = self.starts.pop(0), []
        self._connections = []
        for _ in range(2):
            ours, theirs = Pipe()
            for message in said:
                theirs.send(message)
            self._connections.append(ours)
            self.theirs.append(theirs)


def test_a_set_up_that_cannot_be_is_the_operators_at_the_first_start() -> None:
    with pytest.raises(BadSettings, match=r"^The expert ranks cannot start\. There is no room; lower max_tokens\.$"):
        Scripted((JOINING, NO_ROOM)).start()


def test_it_fails_requests_when_it_comes_later() -> None:
    ranks = Scripted((JOINING, READY), (JOINING, NO_ROOM))
    ranks.start()
    ranks.theirs[0].close()
    with pytest.raises(RankGone, match=r"^The expert ranks did not start: .* gives up \(There is no room"):
        ranks.ensure()


def test_a_group_that_begins_again_is_counted() -> None:
    ranks = Scripted((JOINING, READY), (JOINING, READY))
    ranks.start()
    assert not ranks.ensure()
    ranks.theirs[0].close()
    assert ranks.ensure()
    assert ranks.num_restarts == 1


def test_a_step_that_fails_says_so() -> None:
    ranks = Scripted((JOINING, READY, Failed("Rank 1 did not come.", by_setup=False)))
    ranks.start()
    with pytest.raises(RankGone, match=r"^The step failed: expert rank \d gives up"):
        ranks.compute([Compute(()), Compute(())])


def test_a_rank_that_ends_while_it_is_told_of_the_others_is_a_rank_that_is_gone() -> None:
    ranks = Scripted((JOINING,))
    spawn = ranks._spawn

    def spawn_and_end() -> None:
        spawn()
        ranks.theirs[1].close()

    ranks._spawn = spawn_and_end  # type: ignore[method-assign]
    with pytest.raises(RankGone, match=r"did not start: an expert rank cannot be reached .* start the instance"):
        ranks.start()
    assert ranks._connections == []


def test_memory_that_cannot_be_shared_leaves_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_shared: SharedMemory, _device: torch.device) -> int:
        raise BadSettings("It cannot be shared.")

    monkeypatch.setattr(SharedMemory, "handle_for", refuse)
    ranks = Scripted((JOINING, READY))
    with pytest.raises(BadSettings):
        ranks.start()
    assert ranks._connections == []


def test_a_rank_that_is_stopped_does_not_stop_the_engine_that_sends() -> None:
    ours, _theirs = Pipe()
    limit_sends(ours, 0.1)
    began = time.monotonic()
    with pytest.raises(OSError):
        ours.send_bytes(bytes(10_000_000))
    assert time.monotonic() - began < 5


def test_who_was_killed_has_ended_when_nothing_more_can_be_read() -> None:
    ours, theirs = Pipe()
    words = ["sh", "-c", "sleep 0.3; exit"]
    with subprocess.Popen(words, pass_fds=[theirs.fileno()]):
        theirs.close()
        began = time.monotonic()
        await_end(ours)
        assert 0.2 < time.monotonic() - began < 5


def test_every_wait_leaves_time_for_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(processes, "wait", lambda ones, wait_s: waits.append(wait_s) or list(ones))
    ranks = Scripted((JOINING, READY, Computed(torch.zeros(0, 1).numpy(), ExpertRankLoad())))
    ranks.weights_bytes = 60_000_000_000
    ranks.start()
    ranks.compute([Compute(()), Compute(())])
    joining, ready, computed = (round(one) for one in waits)
    assert (joining, ready - joining, computed) == (120, 2000, 130)


def test_ranks_that_we_inherit_leave_no_zombies() -> None:
    inherit_children = 36  # PR_SET_CHILD_SUBREAPER: as process 1 of a container does
    prctl = ctypes.CDLL(None).prctl
    assert prctl(inherit_children, 1, 0, 0, 0) == 0
    try:
        words = ["sh", "-c", "sleep 100 & echo $!; wait"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as leader:
            assert leader.stdout is not None
            orphan = int(leader.stdout.readline())
            os.killpg(leader.pid, signal.SIGKILL)
            leader.wait()
        reap_group(leader.pid)
        assert not os.path.exists(f"/proc/{orphan}")
        reap_group(leader.pid)
    finally:
        prctl(inherit_children, 0, 0, 0, 0)
