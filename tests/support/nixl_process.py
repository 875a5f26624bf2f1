"""A NIXL agent in a process of its own, driven over pipes by the tests."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class NixlProcess:
    """Starts `python -m tests.support.nixl_process NAME SIZE`; `ask` sends a command and waits for its answer."""

    def __init__(self, name: str, size: int, environ: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nixl_process", name, str(size)],
            cwd=ROOT,
            env=os.environ | {"UCX_LOG_LEVEL": "fatal"} | (environ or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.name = name
        hello = self._read()
        self.metadata = b64decode(hello["metadata"])
        self.base, self.size = hello["base"], size

    def ask(self, verb: str, **arguments: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"verb": verb} | arguments) + "\n")
        self.process.stdin.flush()
        return self._read()

    def meet(self, other: NixlProcess) -> None:
        self.ask("meet", metadata=b64encode(other.metadata).decode())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError(f"{self.name} ended with status {self.process.wait()}")


def main(name: str, size: int) -> None:
    """Answer commands on stdin; advance the fabric all the while."""
    import selectors

    from engine_shim.core.transfer_plan import Span, TransferPlan
    from engine_shim.fabric.nixl import NixlFabric
    from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, PeerName
    from router.contract.errors import TandemError
    from router.contract.kv import Region

    memory = ctypes.create_string_buffer(size)
    region = Region(ctypes.addressof(memory), size, "cpu")
    fabric = NixlFabric(name, region)
    notices: list[str] = []
    keys = 0

    def answer(**facts: Any) -> None:
        print(json.dumps(facts), flush=True)

    def copy(command: dict[str, Any]) -> dict[str, Any]:
        nonlocal keys
        keys += 1
        spans = tuple(Span(*span) for span in command["spans"])
        remote = Region(command["base"], command["size"], "cpu")
        at, num_bytes = command.get("local", (0, size))
        order = CopyOrder(
            CopyKey(keys),
            CopyOp(command["op"]),
            PeerName(command["peer"]),
            TransferPlan(spans),
            remote,
            command.get("tag", "").encode(),
            local=Region(region.base + at, num_bytes, "cpu"),
        )
        began = time.monotonic()
        state = fabric.post(order)
        while state is CopyState.BUSY and time.monotonic() - began < command.get("wait_for_s", 10.0):
            notices.extend(notice.decode() for _, notice in fabric.advance())
            state = fabric.poll(order.key)
        fabric.release(order.key)
        return {"state": state, "took_s": time.monotonic() - began}

    answer(metadata=b64encode(fabric.metadata()).decode(), base=region.base)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        notices.extend(notice.decode() for _, notice in fabric.advance())
        if not selector.select(0.0005):
            continue
        command = json.loads(sys.stdin.readline() or '{"verb": "end"}')
        try:
            match command["verb"]:
                case "meet":
                    answer(peer=fabric.add_peer(b64decode(command["metadata"])))
                case "drop":
                    fabric.drop_peer(PeerName(command["peer"]))
                    answer()
                case "fill":
                    ctypes.memset(region.base, command["byte"], size)
                    answer()
                case "load":
                    content = b64decode(command["content"])
                    ctypes.memmove(region.base, content, len(content))
                    answer()
                case "save":
                    answer(content=b64encode(memory.raw[: command["count"]]).decode())
                case "read":
                    answer(bytes=list(memory.raw[command["at"] : command["at"] + command["count"]]))
                case "copy":
                    answer(**copy(command))
                case "notify":
                    fabric.notify(PeerName(command["peer"]), command["notice"].encode())
                    answer()
                case "notices":
                    answer(notices=notices)
                case "end":
                    os._exit(0)
        except TandemError as error:
            answer(error=error.code)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
