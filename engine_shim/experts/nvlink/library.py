"""The compiled kernels: built by torch's extension loader at first use and kept in its cache, or taken ready-made.

    python -m engine_shim.experts.nvlink.library FILE.so [sm_90 ...]     builds ahead, with nvcc alone

A library carries the digest of its sources; one of other sources is refused.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from engine_shim.experts.nvlink.params import Params
from router.contract.errors import EngineDown, MissingDependency

SOURCE_FOLDER = Path(__file__).parent / "csrc"
FLAGS = ("-O3", "-std=c++17", "--expt-relaxed-constexpr")
DEFAULT_ARCHITECTURES = ("sm_90",)
LEAST_CAPABILITY = 9
"""The kernels begin beside the one before (griddepcontrol), which GPUs before Hopper cannot."""
NVCC_DEADLINE_S = 600
_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_LAUNCH = (ctypes.POINTER(Params), _INT, _INT, _POINTER)
_SIGNATURES = {
    "tandem_dispatch_send": _LAUNCH,
    "tandem_dispatch_recv": _LAUNCH,
    "tandem_combine_send": _LAUNCH,
    "tandem_combine_recv": _LAUNCH,
    "tandem_allocate": (_INT, ctypes.c_int64, ctypes.POINTER(_POINTER)),
    "tandem_free": (_INT, _POINTER),
    "tandem_reach": (_INT, _INT, ctypes.POINTER(_INT)),
    "tandem_share": (_POINTER, ctypes.c_char_p),
    "tandem_open": (_INT, ctypes.c_char_p, ctypes.POINTER(_POINTER)),
    "tandem_close": (_INT, _POINTER),
}


class KernelLibrary:
    """The library's functions, each checked."""

    def __init__(self, file: Path) -> None:
        """Raise MissingDependency when the file is none of ours, or of other sources."""
        try:
            self._library = ctypes.CDLL(str(file))
            digest = self._library.tandem_digest
        except (OSError, AttributeError) as error:
            raise MissingDependency(f"{file} is no library of expert kernels ({error}); build it again.") from error
        digest.restype = ctypes.c_char_p
        self._library.tandem_error_text.restype = ctypes.c_char_p
        if digest().decode() != sources_digest() or self._library.tandem_params_bytes() != ctypes.sizeof(Params):
            raise MissingDependency(
                f"{file} was built from other sources; build it again: "
                f"python -m engine_shim.experts.nvlink.library {file}"
            )
        for name, arguments in _SIGNATURES.items():
            getattr(self._library, name).argtypes = arguments

    # Any: the arguments are as many and as different as the functions; ctypes checks them.
    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        """The function has run.

        Raises:
            EngineDown: CUDA said no.
        """
        error = getattr(self._library, name)(*arguments)
        if error:
            text = self._library.tandem_error_text(error).decode()
            raise EngineDown(f"CUDA refused {name}: {text}; the instance has to start again.")


@cache
def load_library(file: Path | None = None) -> KernelLibrary:
    """The library in `file`, or the one that torch's extension loader builds and keeps.

    Raises:
        MissingDependency: no compiler, or it failed, or a GPU that is too old, or `file` is of other sources.
    """
    return KernelLibrary(file if file is not None else _build_by_torch())


def sources_digest() -> str:
    """Of all sources of the library."""
    digest = hashlib.sha256()
    for file in sorted(SOURCE_FOLDER.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def build_ahead(file: Path, architectures: tuple[str, ...] = DEFAULT_ARCHITECTURES) -> None:
    """`file` is a library for GPUs of these architectures; only nvcc is needed, no torch and no GPU.

    Raises:
        MissingDependency: no nvcc, or it failed.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise MissingDependency("nvcc is not on PATH; install the CUDA toolkit, or take a library built elsewhere.")
    command = [nvcc, "-shared", "-Xcompiler", "-fPIC", *FLAGS, _digest_flag(), *_architecture_flags(architectures)]
    command += ["-o", str(file), *_sources()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=NVCC_DEADLINE_S, check=False)
    if done.returncode:
        raise MissingDependency(f"nvcc could not build the expert kernels: {done.stderr[-2000:]}")


def _build_by_torch() -> Path:
    # Imported here: it looks for compilers.
    from torch.utils import cpp_extension  # noqa: PLC0415

    major, minor = torch.cuda.get_device_capability()
    if major < LEAST_CAPABILITY:
        raise MissingDependency(
            f"The expert kernels need a GPU of compute capability {LEAST_CAPABILITY}.0 or later, and this one has "
            f"{major}.{minor}; use --expert-transport nixl."
        )
    architecture = f"sm_{major}{minor}"
    try:
        # Any: torch leaves its loader untyped.
        load: Any = cpp_extension.load
        return Path(
            load(
                name=f"tandem_experts_{sources_digest()}_{architecture}",
                sources=_sources(),
                extra_cuda_cflags=[*FLAGS, _digest_flag(), *_architecture_flags((architecture,))],
                with_cuda=True,
                is_python_module=False,
            )
        )
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        raise MissingDependency(
            f"The expert kernels could not be built ({error}); install nvcc and ninja, or name a library built ahead."
        ) from error


def _sources() -> list[str]:
    return [str(file) for file in sorted(SOURCE_FOLDER.glob("*.cu"))]


def _digest_flag() -> str:
    return f'-DTANDEM_DIGEST=\\"{sources_digest()}\\"'


def _architecture_flags(architectures: tuple[str, ...]) -> list[str]:
    return [f"-gencode=arch={name.replace('sm', 'compute')},code={name}" for name in architectures]


if __name__ == "__main__":
    build_ahead(Path(sys.argv[1]), tuple(sys.argv[2:]) or DEFAULT_ARCHITECTURES)
