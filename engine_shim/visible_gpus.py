"""Which GPUs this process and its children see: CUDA reads it from the environment, before its first use."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from router.contract.errors import BadSettings

VARIABLE = "CUDA_VISIBLE_DEVICES"


def see_only(gpus: Sequence[int], environ: MutableMapping[str, str]) -> None:
    """`environ` shows these GPUs alone, as 0, 1, … in this order; they are counted among those that it showed before.

    Raises:
        BadSettings: it shows fewer.
    """
    shown = environ.get(VARIABLE)
    if shown is None:
        environ[VARIABLE] = ",".join(map(str, gpus))
        return
    names = [name.strip() for name in shown.split(",") if name.strip()]
    for gpu in gpus:
        if gpu >= len(names):
            raise BadSettings(
                f"--devices names GPU {gpu}, and {VARIABLE}={shown} shows {len(names)}, counted from 0; change either."
            )
    environ[VARIABLE] = ",".join(names[gpu] for gpu in gpus)
