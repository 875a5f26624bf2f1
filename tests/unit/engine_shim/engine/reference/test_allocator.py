from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import torch
from engine_shim.engine.reference.allocator import keep_freed_memory
def resident_bytes():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096
if {keep}:
    assert keep_freed_memory()
before = resident_bytes()
tensors = [torch.ones(300_000) for _ in range(100)]
tensors.clear()
print(resident_bytes() - before)
"""


def test_freed_memory_stays():
    kept, returned = (
        int(subprocess.run([sys.executable, "-c", PROGRAM.format(keep=keep)], capture_output=True, check=True).stdout)
        for keep in (True, False)
    )
    assert returned < 20_000_000
    assert kept > 100_000_000
