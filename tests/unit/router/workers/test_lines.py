import os
import subprocess
import sys

PROGRAM = """
import sys
from pathlib import Path
from router.workers.lines import LineSink
sink = LineSink(1, Path(sys.argv[1]))
for _ in range(20):
    sink((sys.argv[2] * 4999 + "\\n").encode() * 5)
"""


def test_lines_of_several_processes_stay_whole(tmp_path):
    out, into = os.pipe()
    writers = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "lock"), letter], stdout=into)
        for letter in "ab"
    ]
    os.close(into)
    with os.fdopen(out, "rb") as reader:
        lines = reader.read().split(b"\n")[:-1]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert sorted(lines) == [b"a" * 4999] * 100 + [b"b" * 4999] * 100
