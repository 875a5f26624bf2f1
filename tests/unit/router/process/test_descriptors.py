import os
import subprocess
import sys
from pathlib import Path

import pytest

from router.process.descriptors import make_room


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the size of the table")
def test_the_table_has_grown_before_it_is_needed():
    code = (
        "import resource, router.process.descriptors as d, tests.support.descriptors as t\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "print(t.size_of_table(), d.make_room(1024), t.size_of_table(), d.make_room())\n"
    )
    root = Path(__file__).parents[4]
    said = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout
    before, made, after, most = map(int, said.split())
    assert before < 1024 == made <= after
    assert most == 2048, "no more than the process may have"


def test_no_descriptor_in_use_is_closed():
    soft = 64
    high = os.dup2(0, soft - 1)
    try:
        assert make_room(soft) == soft
        os.fstat(high)
    finally:
        os.close(high)
