"""Settings of one reference engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine_shim.experts.shape import ExpertNumerics
from router.contract.errors import BadSettings
from router.contract.kv import KVOrder

KEY_TILE = 64
"""Tokens of one tile of keys in invariant numerics; there, the block size must divide it."""


class Numerics(StrEnum):
    """What is promised about floating-point order."""

    FAST = "fast"
    """The quickest kernels; a row's last bits may depend on the batch that it was computed in."""
    INVARIANT = "invariant"
    """A row's bits depend on its own tokens alone: not on the batch, the chunking, cache hits or the block size."""


class ExpertTransport(StrEnum):
    """How rows travel between the ranks of one engine."""

    NIXL = "nixl"
    """WRITEs into each other's memory, on the CPU or on a GPU."""
    NVLINK = "nvlink"
    """CUDA kernels that address the memory of all ranks."""


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """How to load and run a model. 0 and "" mean "derive it"."""

    model: str
    """Checkpoint directory, `.gguf` file, or the name `smollm2-135m`."""
    name: str = ""
    """Served model name; empty: the last part of `model`."""
    device: str = "cpu"
    """`cpu`, `cuda` or `cuda:N`."""
    num_gpus: int = 0
    """GPUs from `device` on that must be there and that the ranks share; 0: those that are, at most one a rank."""
    dtype: str = ""
    """Weights and KV cache: float32, bfloat16 or float16; empty: float32 on CPU, bfloat16 on CUDA."""
    block_tokens: int = 16
    num_blocks: int = 0
    """KV blocks; 0: as many as `kv_bytes` holds."""
    kv_bytes: int = 0
    """KV cache size in bytes; 0 (with num_blocks 0): 8192 tokens."""
    kv_order: KVOrder = KVOrder.BLOCK_FIRST
    max_num_seqs: int = 32
    """Sequences in one batch."""
    max_batch_tokens: int = 512
    """Rows in one batch: long prompts are computed in chunks of at most so many tokens."""
    max_context_tokens: int = 0
    """Prompt plus output of one sequence; 0: what the model and the KV cache allow."""
    numerics: Numerics = Numerics.FAST
    cuda_graphs: bool = True
    """On a GPU, with fast numerics and without experts, decode steps are replayed as graphs, captured at the start."""
    num_threads: int = 0
    """CPU threads of the kernels, process-wide; 0: torch's choice."""
    prefix_cache: bool = True
    num_ranks: int = 1
    """Processes that share the experts of each layer; 1: this one holds all."""
    expert_numerics: ExpertNumerics = ExpertNumerics.EXACT
    expert_transport: ExpertTransport = ExpertTransport.NIXL
    expert_kernels: str = ""
    """A library of the NVLink kernels that was built ahead; empty: built at first use, and kept."""
    expert_wait_for_s: float = 10.0
    """The longest that a rank waits for the others within one layer."""
    expert_overlap: bool = False
    """Each rank computes its batch in two halves: one computes while the other's rows travel."""
    seed: int = 0
    """Start of the engine's own random stream, used by sequences without a seed."""

    def __post_init__(self) -> None:
        """Raise BadSettings for values that no engine can run with."""
        for name in ("block_tokens", "max_num_seqs", "max_batch_tokens", "num_ranks"):
            if getattr(self, name) < 1:
                raise BadSettings(f"Engine setting {name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("num_blocks", "kv_bytes", "max_context_tokens", "num_threads", "num_gpus"):
            if getattr(self, name) < 0:
                raise BadSettings(f"Engine setting {name} is {getattr(self, name)}; it must not be negative.")
        if self.expert_overlap and self.num_ranks == 1:
            raise BadSettings("Nothing travels within one rank, so nothing can be overlapped; use --ep 2 or more.")
        if self.expert_transport is ExpertTransport.NVLINK and self.device == "cpu":
            raise BadSettings("Experts over NVLink need GPUs; use --device cuda, or --expert-transport nixl.")
        if self.expert_transport is ExpertTransport.NVLINK and self.num_ranks == 1:
            raise BadSettings("Nothing travels within one rank, over NVLink or otherwise; use --ep 2 or more.")
        if self.num_gpus > self.num_ranks:
            raise BadSettings(
                f"--devices names {self.num_gpus} GPUs for {self.num_ranks} expert ranks, so some would be idle; name "
                "fewer, or raise --ep."
            )
        if self.dtype not in ("", "float32", "bfloat16", "float16"):
            raise BadSettings(f"Engine dtype {self.dtype!r} is unknown; use float32, bfloat16 or float16.")
        if self.numerics is Numerics.INVARIANT and KEY_TILE % self.block_tokens:
            raise BadSettings(f"Invariant numerics need block_tokens that divide {KEY_TILE}, not {self.block_tokens}.")
        if self.device.split(":")[0] not in ("cpu", "cuda"):
            raise BadSettings(f"Engine device {self.device!r} is unknown; use cpu, cuda or cuda:N.")
