"""The vLLM releases that this connector has been tested with, and what it takes of them."""

from __future__ import annotations

from router.contract.errors import MissingDependency

TESTED = ("0.32",)
"""Major and minor. Each has its contract test (`tests/real/vllm`); a release beside these is refused, not tried."""


def check_version(version: str) -> None:
    """Raises MissingDependency unless this release of vLLM is one of the tested ones."""
    if ".".join(version.split(".")[:2]) not in TESTED:
        raise MissingDependency(
            f"Tandem's connector is tested with vLLM {', '.join(f'{one}.x' for one in TESTED)}, not {version}; "
            "install a tested release beside it."
        )
