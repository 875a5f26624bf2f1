"""Open an engine: from settings to weights in memory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from engine_shim.engine.reference.allocator import keep_freed_memory, return_freed_memory
from engine_shim.engine.reference.checkpoint import Checkpoint, locate
from engine_shim.engine.reference.config import ModelConfig
from engine_shim.engine.reference.engine import ReferenceEngine
from engine_shim.engine.reference.gguf import GGUFCheckpoint
from engine_shim.engine.reference.kernels import kernels_of
from engine_shim.engine.reference.kv_cache import TORCH_DTYPES
from engine_shim.engine.reference.safetensors_dir import SafetensorsCheckpoint
from engine_shim.engine.reference.seeded_checkpoint import SEED_FILE, SeededCheckpoint
from engine_shim.engine.reference.settings import ReferenceSettings
from engine_shim.engine.reference.tokenizer import Tokenizer
from engine_shim.engine.reference.weights import Weights, load_weights
from router.contract.errors import ModelUnusable


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A checkpoint in memory, which several engines may share."""

    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer


def open_engine(settings: ReferenceSettings) -> ReferenceEngine:
    """An idle engine with the weights of `settings.model` in memory.

    Raises:
        ModelUnusable: one sentence that says what is wrong with the checkpoint or the device.
    """
    loaded = load_model(settings)
    return ReferenceEngine(loaded.config, loaded.weights, loaded.tokenizer, settings)


def load_model(settings: ReferenceSettings) -> LoadedModel:
    """The weights of `settings.model` are on the device. Raises ModelUnusable as `open_engine` does."""
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    device = device_of(settings)
    if device.type == "cpu":
        keep_freed_memory()
    path = locate(settings.model)
    checkpoint = _checkpoint(path)
    weights = load_weights(checkpoint, dtype_of(settings, device), device, kernels_of(settings.numerics, device.type))
    # Loading has left copies of the weights' bytes behind.
    return_freed_memory()
    return LoadedModel(checkpoint.config, weights, Tokenizer.load(path))


def _checkpoint(path: Path) -> Checkpoint:
    if not path.is_dir():
        return GGUFCheckpoint(path)
    return SeededCheckpoint(path) if (path / SEED_FILE).is_file() else SafetensorsCheckpoint(path)


def device_of(settings: ReferenceSettings) -> torch.device:
    """Where the engine computes; a GPU is named with its number. Raises ModelUnusable when there is no such device."""
    device = torch.device(settings.device)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ModelUnusable(f"Device {settings.device} was asked for, but torch finds no CUDA; use --device cpu.")
    first, wanted, found = device.index or 0, max(settings.num_gpus, 1), torch.cuda.device_count()
    if first + wanted > found:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise ModelUnusable(
            f"{wanted} GPUs from number {first} on were asked for, and torch finds {found}, counted from 0 "
            f"(CUDA_VISIBLE_DEVICES: {shown}); name others with --devices."
        )
    return torch.device("cuda", first)


def dtype_of(settings: ReferenceSettings, device: torch.device) -> torch.dtype:
    """Of weights and KV cache."""
    return TORCH_DTYPES[settings.dtype or ("float32" if device.type == "cpu" else "bfloat16")]
