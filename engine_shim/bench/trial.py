"""`python -m engine_shim.bench.trial`: two NIXL agents of one process copy bytes, and every byte is compared.

`tandem doctor --preflight` runs it in a process of its own, because a fabric whose driver, library and image do not fit
may end its process instead of raising. Prints one JSON object, `{"runs": [...]}` or `{"error": sentence}`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

import numpy as np

from engine_shim.bench.transfer_memory import Memory, noise, take_memory
from engine_shim.core.transfer_plan import Span, TransferPlan
from engine_shim.fabric.nixl import NixlFabric
from engine_shim.fabric.port import CopyKey, CopyOp, CopyOrder, CopyState, PeerName
from router.contract.errors import TandemError, TransferFailed

WITHIN_S = 10.0
TAG = b"trial"


class Pair:
    """Two agents that know each other."""

    def __init__(self, backend: str, device: str, num_bytes: int) -> None:
        """Raises MissingDependency without NIXL or the backend, HandshakeFailed."""
        self.source: Memory = take_memory(device, num_bytes)
        self.target: Memory = take_memory(device, num_bytes)
        self._writer = NixlFabric("trial-writer", self.source.region, backend)
        self._reader = NixlFabric("trial-reader", self.target.region, backend)
        self._peer: PeerName = self._writer.add_peer(self._reader.metadata())
        self._reader.add_peer(self._writer.metadata())

    def write(self, number: int, num_bytes: int) -> float:
        """So many bytes have landed and their tag has come; seconds. Raises TransferFailed."""
        plan = TransferPlan([Span(0, 0, num_bytes)])
        order = CopyOrder(CopyKey(number), CopyOp.WRITE, self._peer, plan, self.target.region, TAG)
        began_at = time.perf_counter()
        state, told = self._writer.post(order), False
        while state is CopyState.BUSY or not told:
            self._writer.advance()
            told = told or any(tag == TAG for _, tag in self._reader.advance())
            state = self._writer.poll(order.key) if state is CopyState.BUSY else state
            if state is CopyState.FAILED:
                raise TransferFailed(f"A WRITE of {num_bytes} bytes has failed.")
            if time.perf_counter() - began_at > WITHIN_S:
                raise TransferFailed(f"A WRITE of {num_bytes} bytes has not ended within {WITHIN_S:g} s.")
        seconds = time.perf_counter() - began_at
        self._writer.release(order.key)
        return seconds


def run(backend: str, device: str, sizes_bytes: Sequence[int]) -> list[dict[str, float]]:
    """A WRITE of each size, the first one twice: it pays for the connection. Raises TandemError."""
    pair = Pair(backend, device, max(sizes_bytes))
    pair.write(0, sizes_bytes[0])
    runs = []
    for number, num_bytes in enumerate(sizes_bytes, start=1):
        pattern = noise(num_bytes, number)
        pair.source.load(pattern)
        seconds = pair.write(number, num_bytes)
        wrong_bytes = int(np.count_nonzero(pair.target.save()[:num_bytes] != pattern))
        runs.append({"num_bytes": num_bytes, "num_spans": 1, "seconds": seconds, "wrong_bytes": wrong_bytes})
    return runs


def main(argv: Sequence[str]) -> int:
    """Print what the trial has brought; return 0 when it could be made."""
    parser = argparse.ArgumentParser(description="Copy bytes between two NIXL agents of this process.")
    parser.add_argument("--backend", default="UCX")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes-bytes", type=int, nargs="+", default=[1 << 20, 64 << 20])
    options = parser.parse_args(argv)
    try:
        told: dict[str, object] = {"runs": run(options.backend, options.device, options.sizes_bytes)}
    except TandemError as error:
        told = {"error": error.message}
    print(json.dumps(told))
    return 0 if "runs" in told else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
