"""The program of a `NixlProcess`: it answers commands on stdin and advances the fabric all the while."""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import sys
import time
from base64 import b64decode, b64encode
from itertools import count
from typing import Any

from engine_shim.core.transfer_plan import Span, TransferPlan
from engine_shim.fabric.nixl import NixlFabric
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, PeerName
from router.contract.errors import TandemError
from router.contract.kv import Region

Command = dict[str, Any]
LOOK_S = 0.0005
"""For so long a command is waited for before the fabric is advanced again."""


class Agent:
    """A fabric over memory of its own; each command is a method that gives the facts of its answer."""

    def __init__(self, name: str, size: int) -> None:
        self.memory = ctypes.create_string_buffer(size)
        self.region = Region(ctypes.addressof(self.memory), size, "cpu")
        self.fabric = NixlFabric(name, self.region)
        self._notices: list[str] = []
        self._keys = count(1)

    def advance(self) -> None:
        self._notices += [notice.decode() for _, notice in self.fabric.advance()]

    def hello(self, command: Command) -> Command:
        return {"metadata": b64encode(self.fabric.metadata()).decode(), "base": self.region.base}

    def meet(self, command: Command) -> Command:
        return {"peer": self.fabric.add_peer(b64decode(command["metadata"]))}

    def drop(self, command: Command) -> Command:
        self.fabric.drop_peer(PeerName(command["peer"]))
        return {}

    def fill(self, command: Command) -> Command:
        ctypes.memset(self.region.base, command["byte"], self.region.num_bytes)
        return {}

    def load(self, command: Command) -> Command:
        content = b64decode(command["content"])
        ctypes.memmove(self.region.base, content, len(content))
        return {}

    def save(self, command: Command) -> Command:
        return {"content": b64encode(self.memory.raw[: command["count"]]).decode()}

    def read(self, command: Command) -> Command:
        return {"bytes": list(self.memory.raw[command["at"] : command["at"] + command["count"]])}

    def copy(self, command: Command) -> Command:
        """One copy to its end, or for as long as it may take."""
        at, num_bytes = command.get("local", (0, self.region.num_bytes))
        order = CopyOrder(
            CopyKey(next(self._keys)),
            CopyOp(command["op"]),
            PeerName(command["peer"]),
            TransferPlan(tuple(Span(*span) for span in command["spans"])),
            Region(command["base"], command["size"], "cpu"),
            command.get("tag", "").encode(),
            local=Region(self.region.base + at, num_bytes, "cpu"),
        )
        began = time.monotonic()
        state = self.fabric.post(order)
        while state is CopyState.BUSY and time.monotonic() - began < command.get("wait_for_s", 10.0):
            self.advance()
            state = self.fabric.poll(order.key)
        self.fabric.release(order.key)
        return {"state": state, "took_s": time.monotonic() - began}

    def notify(self, command: Command) -> Command:
        self.fabric.notify(PeerName(command["peer"]), command["notice"].encode())
        return {}

    def notices(self, command: Command) -> Command:
        return {"notices": self._notices}

    def end(self, command: Command) -> Command:
        os._exit(0)


def main(name: str, size: int) -> None:
    """Answer until stdin ends."""
    agent = Agent(name, size)
    print(json.dumps(agent.hello({})), flush=True)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    while True:
        agent.advance()
        if not selector.select(LOOK_S):
            continue
        command = json.loads(sys.stdin.readline() or '{"verb": "end"}')
        try:
            facts = getattr(agent, command["verb"])(command)
        except TandemError as error:
            facts = {"error": error.code}
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
