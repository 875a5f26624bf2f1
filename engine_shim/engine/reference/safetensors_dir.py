"""Weights of a Hugging Face directory: `config.json` and one or several `.safetensors` files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from engine_shim.engine.reference.config import config_from_hf
from router.contract.errors import ModelUnusable

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class SafetensorsCheckpoint:
    """A Checkpoint over a directory; the sharded form names each tensor's file in an index."""

    def __init__(self, directory: Path) -> None:
        """Read the configuration and find every tensor's file.

        Raises:
            ModelUnusable: a file is missing or broken, or the model is one that this engine does not compute.
        """
        self._directory = directory
        raw_config = _read_json(directory / "config.json")
        self.config = config_from_hf(raw_config)
        self._file_of = _file_of(directory)
        self.hashes: dict[str, str] = {}
        """Digest of each tensor that has been read, here or by whoever shares the work."""

    def has(self, name: str) -> bool:
        """See Checkpoint.has."""
        return name in self._file_of

    def read(self, name: str, out: torch.Tensor) -> None:
        """See Checkpoint.read."""
        file = self._file_of.get(name)
        if file is None:
            raise ModelUnusable(f"{self._directory} lacks the tensor {name}; download the checkpoint again.")
        try:
            with safe_open(self._directory / file, framework="pt") as opened:
                stored = opened.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelUnusable(f"{self._directory / file} cannot be read ({error}); download it again.") from error
        if stored.shape != out.shape:
            raise ModelUnusable(f"{self._directory}: {name} has sizes {[*stored.shape]}, not {[*out.shape]}.")
        one = hashlib.sha256(f"{name} {stored.dtype}".encode())
        one.update(stored.contiguous().view(torch.uint8).numpy())
        self.hashes[name] = one.hexdigest()
        out.copy_(stored)

    def digest(self) -> str:
        """See Checkpoint.digest."""
        return hashlib.sha256(repr((self.config, sorted(self.hashes.items()))).encode()).hexdigest()[:32]


def _file_of(directory: Path) -> dict[str, str]:
    if (directory / _INDEX).is_file():
        weight_map = _read_json(directory / _INDEX).get("weight_map")
        if not isinstance(weight_map, Mapping):
            raise ModelUnusable(f"{directory / _INDEX} has no weight_map; download the checkpoint again.")
        return {str(name): str(file) for name, file in weight_map.items()}
    try:
        with safe_open(directory / _SINGLE, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), _SINGLE)
    except (OSError, SafetensorError) as error:
        raise ModelUnusable(
            f"{directory} holds no readable {_SINGLE} or {_INDEX} ({error}); give a checkpoint with safetensors."
        ) from error


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"{path} cannot be read as JSON ({error}); give a Hugging Face directory.") from error
    if not isinstance(value, dict):
        raise ModelUnusable(f"{path} is not a JSON object; give a Hugging Face directory.")
    return value
