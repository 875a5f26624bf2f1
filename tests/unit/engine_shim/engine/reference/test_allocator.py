from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
from engine_shim.engine.reference.allocator import keep_freed_memory, return_freed_memory
def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
if {keep}:
    assert keep_freed_memory()
before = resident_bytes()
tensors = [torch.ones(300_000) for _ in range(100)]
tensors.clear()
print(resident_bytes() - before)
return_freed_memory()
print(resident_bytes() - before)
"""


def resident_after(*, keep: bool) -> list[int]:
    program = [sys.executable, "-c", PROGRAM.format(keep=keep)]
    return [int(line) for line in subprocess.run(program, capture_output=True, check=True).stdout.split()]


def test_freed_memory_stays_until_it_is_returned():
    kept, returned = resident_after(keep=True)
    assert kept > 100_000_000
    assert returned < 20_000_000
    assert resident_after(keep=False)[0] < 20_000_000
