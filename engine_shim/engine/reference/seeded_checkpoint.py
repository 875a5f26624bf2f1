"""SeededCheckpoint: weights that are drawn where they are needed, a model of any size in seconds and no file.

Its directory holds the configuration, the tokenizer and SEED_FILE. Every tensor depends on the seed and its own name,
and, since every device draws otherwise, on the kind of device and the dtype; the digest says which.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch

from engine_shim.engine.reference.checkpoint_names import tensor_shapes
from engine_shim.engine.reference.config import config_from_hf
from router.contract.errors import ModelUnusable

SEED_FILE = "seed.json"
GAIN = 2.0
"""Times 1 / sqrt(in), the deviation of a matrix's numbers: more than what keeps a signal's size, as trained ones."""


class SeededCheckpoint:
    """See Checkpoint."""

    def __init__(self, directory: Path) -> None:
        """Read configuration and seed. Raises ModelUnusable."""
        try:
            raw, self._seed = (json.loads((directory / name).read_bytes()) for name in ("config.json", SEED_FILE))
        except (OSError, ValueError) as error:
            raise ModelUnusable(f"{directory} cannot be read ({error}); remove it, and it is written anew.") from error
        self.config = config_from_hf(raw)
        self._shapes = tensor_shapes(self.config)
        self._kinds: set[str] = set()

    def has(self, name: str) -> bool:
        """See Checkpoint."""
        return name in self._shapes

    def read(self, name: str, out: torch.Tensor) -> None:
        """See Checkpoint."""
        if self._shapes.get(name) != tuple(out.shape):
            raise ModelUnusable(f"A model of this shape has no {name} of sizes {[*out.shape]}.")
        digest = hashlib.sha256(f"{self._seed} {name}".encode()).digest()
        generator = torch.Generator(out.device).manual_seed(int.from_bytes(digest[:7], "big"))
        if out.dim() == 1:
            out.normal_(1.0, 0.1, generator=generator)
        else:
            out.normal_(0.0, GAIN * out.shape[-1] ** -0.5, generator=generator)
        self._kinds.add(f"{out.device.type} {out.dtype}")

    def digest(self) -> str:
        """See Checkpoint."""
        return hashlib.sha256(repr((self.config, self._seed, sorted(self._kinds))).encode()).hexdigest()[:32]
