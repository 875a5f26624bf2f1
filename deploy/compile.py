"""`python deploy/compile.py FROM INTO`: the router's hot modules as C, beside the Python ones that they replace.

The Python sources are the reference and work without this; compiled by mypyc they do the same in about two thirds of
the CPU. `INTO` is a folder that holds the package `router` and is imported from, such as site-packages; a Python file
that is edited there later has no effect before this has run again. Needs a C compiler, mypy and setuptools.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

HOT = (
    "router/api/client.py",
    "router/api/door.py",
    "router/api/hook.py",
    "router/api/protocol.py",
    "router/contract/ids.py",
    "router/contract/ledger.py",
    "router/contract/rendezvous.py",
    "router/core/admission.py",
    "router/core/breaker.py",
    "router/core/budgets.py",
    "router/core/burden.py",
    "router/core/intake.py",
    "router/core/lifecycle.py",
    "router/core/placement.py",
    "router/core/policies.py",
    "router/core/tail.py",
    "router/driver/attempt.py",
    "router/driver/clerk.py",
    "router/driver/ending.py",
    "router/driver/exchange.py",
    "router/driver/facts.py",
    "router/driver/leftover.py",
    "router/driver/reply.py",
    "router/driver/router.py",
    "router/driver/sweep.py",
    "router/legs/call.py",
    "router/legs/connection.py",
    "router/legs/decode.py",
    "router/legs/leg.py",
    "router/legs/params.py",
    "router/legs/pool.py",
    "router/legs/prefill.py",
    "router/legs/take_back.py",
    "router/observe/histogram.py",
    "router/observe/requestlog.py",
    "router/observe/series.py",
    "router/observe/telemetry.py",
    "router/store/batch.py",
)
"""What runs for each request, and what derives from it; not modules with msgspec Structs, which mypyc cannot make."""


def main(source: Path, into: Path) -> None:
    """The compiled modules are in `into`."""
    from mypyc.build import mypycify  # noqa: PLC0415 - not needed to read HOT
    from setuptools import setup  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="tandem-compile-") as folder:
        shutil.copytree(
            source / "router", Path(folder) / "router", ignore=shutil.ignore_patterns("__pycache__", "*.so")
        )
        os.chdir(folder)
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        options = ["--python-version", version, "--ignore-missing-imports", *HOT]
        extensions = mypycify(options, opt_level="3", debug_level="0")
        setup(name="router", ext_modules=extensions, script_args=["-q", "build_ext", "--inplace"])
        for built in Path(folder).rglob("*.so"):
            if "build" not in built.parts:
                shutil.copy2(built, into / built.relative_to(folder))


if __name__ == "__main__":
    main(*(Path(one).resolve() for one in sys.argv[1:3]))
