"""NvlinkExperts: the Experts port over peers' GPU memory.

A flight uses part `epoch % flights` of the region, and each part counts its own steps in device memory. So a captured
CUDA graph may be replayed any number of times: nothing of a step is decided on the host, and a step needs no reply from
it. All ranks capture and replay the same steps in the same order.

A fault is told in pinned memory, which the host reads without waiting for the GPU: `status` is legal at any time. What
a graph gives after a fault is NaN.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from engine_shim.experts.nvlink.arguments import check_inputs, check_memory, check_rows, live_tokens
from engine_shim.experts.nvlink.library import KernelLibrary
from engine_shim.experts.nvlink.parts import STATUS_WORDS, GroupWords, Part, make_part
from engine_shim.experts.nvlink.peers import PeerRegions
from engine_shim.experts.nvlink.region import RegionPlan, kernel_columns
from engine_shim.experts.port import Dispatched, Flight, Phase, Status
from engine_shim.experts.quantise import Rows
from engine_shim.experts.shape import ExpertNumerics, ExpertShape
from router.contract.errors import BadRequest, BadSettings, Impossible, RankGone

BLOCKS_PER_SM = 2
WARPS_SENDING, WARPS_RECEIVING = 16, 14
"""Warps of a block in the kernels; csrc/params.cuh and csrc/combine_recv.cu."""
SPREAD_COLUMNS = 1024
"""Of a row, by one warp, in fp8; csrc/dispatch_recv.cu."""
TIMED_OUT, BAD_EXPERT, TOO_MANY_TOKENS, PEER_REFUSED, TOO_FEW_ANSWERS = 1, 2, 3, 4, 5
REFUSALS = {
    BAD_EXPERT: "a chosen expert does not exist",
    TOO_MANY_TOKENS: "too many tokens, or what does not fit, were given",
    TOO_FEW_ANSWERS: "fewer answers than slots were given",
}
"""What the host says of a fault that is this rank's own."""
MOST_TIMEOUT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class NvlinkSettings:
    """What may differ from deployment to deployment; equal on all ranks but for num_sms."""

    num_sms: int = 0
    """Multiprocessors that the kernels may fill; 0: all."""
    timeout_s: float = 10.0
    """The longest wait for a peer."""

    def __post_init__(self) -> None:
        """Raise BadSettings for a wait that the kernels' clock cannot count."""
        if not 0 < self.timeout_s <= MOST_TIMEOUT_S:
            raise BadSettings(f"A wait for a peer is over 0 and at most {MOST_TIMEOUT_S:.0f} s, not {self.timeout_s}.")


class NvlinkExperts:
    """See Experts; x and answers are of one dtype and on the rank's GPU.

    Kernels run on the current stream, which must be one and the same for all halves of all flights: kernels that wait
    on one stream could keep those from starting, on another, that they wait for.
    """

    def __init__(
        self,
        shape: ExpertShape,
        rank: int,
        plan: RegionPlan,
        regions: PeerRegions,
        library: KernelLibrary,
        settings: NvlinkSettings | None = None,
    ) -> None:
        """Join the group; every rank's region exists and is zero."""
        self._shape, self._rank, self._regions, self._library = shape, rank, regions, library
        self._settings = settings or NvlinkSettings()
        self._device = regions.own.device
        self._dedup = int(shape.numerics is ExpertNumerics.DEDUP)
        # Any: torch leaves it untyped.
        properties: Any = torch.cuda.get_device_properties(self._device)
        self._num_sms: int = self._settings.num_sms or properties.multi_processor_count
        self._words = GroupWords(
            alive=torch.full((1,), _bits(range(shape.num_ranks)), dtype=torch.int64, device=self._device),
            error=torch.zeros(1, dtype=torch.int32, device=self._device),
            status=torch.zeros(STATUS_WORDS, dtype=torch.int32, pin_memory=True),
        )
        self._token_counts = torch.arange(shape.max_tokens + 1, dtype=torch.int32, device=self._device)
        timeout_s = self._settings.timeout_s
        self._parts = [make_part(shape, rank, offsets, regions, self._words, timeout_s) for offsets in plan.parts]
        self._flights = 0
        torch.cuda.synchronize(self._device)

    @property
    def shape(self) -> ExpertShape:
        """The group's constants."""
        return self._shape

    @property
    def rank(self) -> int:
        """This rank."""
        return self._rank

    @property
    def num_sms(self) -> int:
        """Multiprocessors that the kernels may fill."""
        return self._num_sms

    @property
    def status(self) -> Status:
        """Whether, and why, the group has failed; a host load."""
        fault, phase, peer, epoch, expected, seen = self._words.status.tolist()
        return Status(epoch, Phase(phase), peer, expected, seen) if fault else Status()

    def dispatch_send(
        self, x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor, num_tokens: int | torch.Tensor | None = None
    ) -> Flight:
        """See Experts."""
        return self._send(x, topk, weights, num_tokens, both_halves=False)

    def dispatch(
        self, x: torch.Tensor, topk: torch.Tensor, weights: torch.Tensor, num_tokens: int | torch.Tensor | None = None
    ) -> tuple[Flight, Dispatched]:
        """Both halves at once: a kernel less in exact numerics."""
        flight = self._send(x, topk, weights, num_tokens, both_halves=True)
        return flight, self._receive(flight)

    def dispatch_receive(self, flight: Flight) -> Dispatched:
        """See Experts."""
        return self._receive(flight)

    def answer_region(self, flight: Flight) -> torch.Tensor:
        """[slots, H]: answers that the engine writes here need no copy. Write after `dispatch_receive`."""
        return self._part_of(flight).answers

    def combine_send(self, flight: Flight, answers: torch.Tensor) -> None:
        """See Experts; answers are of x's dtype, one for each slot up to the end of the last expert's.

        That there are enough only the GPU knows: where there are not, this and the next half fail, and the peers hear.
        """
        part = self._take_answers(flight, answers)
        self._launch("tandem_combine_send", part, self._blocks_for_slices())

    def combine_receive(self, flight: Flight, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Experts."""
        return self._end(self._part_of(flight), out)

    def combine(self, flight: Flight, answers: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Both halves at once: a kernel less when exact answers lie in `answer_region`."""
        part = self._take_answers(flight, answers)
        part.params.both_halves = int(not self._dedup and not part.params.copy_expert_out)
        if not part.params.both_halves:
            self._launch("tandem_combine_send", part, self._blocks_for_slices())
        return self._end(part, out)

    def wait(self) -> None:
        """What was launched on the current stream has run. Raises RankGone or BadRequest after a fault."""
        torch.cuda.current_stream(self._device).synchronize()
        self._check_sound()

    def mask(self, peers: frozenset[int]) -> None:
        """See Experts; no flight is under way, since its kernels would take some ranks for masked and some not."""
        if any(part.flight is not None for part in self._parts):
            raise Impossible("Ranks are masked between flights; receive those that are under way first.")
        living = frozenset(range(self._shape.num_ranks)) - peers
        if self._rank not in living:
            raise BadRequest(f"Rank {self._rank} cannot mask itself.")
        self._words.alive.fill_(_bits(living))

    def close(self) -> None:
        """See Experts; the GPU has finished this rank's kernels. No peer may be in a step."""
        if not self._parts:
            return
        torch.cuda.synchronize(self._device)
        self._parts.clear()
        self._regions.close()

    def _send(
        self,
        x: torch.Tensor,
        topk: torch.Tensor,
        weights: torch.Tensor,
        num_tokens: int | torch.Tensor | None,
        *,
        both_halves: bool,
    ) -> Flight:
        self._check_sound()
        flight = Flight(self._flights + 1)
        part = self._parts[flight % len(self._parts)]
        if part.flight is not None:
            raise RankGone(f"Flight {part.flight} has not been received; at most {len(self._parts)} are under way.")
        with self._done_or_refused(part):
            check_inputs(self._shape, self._device, x, topk, weights)
            live = live_tokens(self._token_counts, len(x), num_tokens)
        params = part.params
        params.tokens, params.topk_ids, params.weights = x.data_ptr(), topk.data_ptr(), weights.data_ptr()
        params.num_tokens, params.given_tokens = live.data_ptr(), len(x)
        params.ids_are_64 = int(topk.dtype is torch.int64)
        # De-duplicated rows are spread by a kernel of their own in any case.
        params.both_halves = int(both_halves and not self._dedup)
        # Beside sending in chunks there is room for the blocks that spread.
        room = self._num_sms * (BLOCKS_PER_SM if params.chunks == 1 else 1)
        blocks = 1 + min(self._shape.max_tokens, max(1, room - 1))
        self._launch("tandem_dispatch_send", part, blocks)
        self._flights, part.flight, part.held = flight, flight, (x, topk, weights, live)
        return flight

    @contextmanager
    def _done_or_refused(self, part: Part) -> Iterator[None]:
        """What is refused in the block is told to the peers, or they would wait for this rank."""
        try:
            yield
        except BadRequest:
            if not torch.cuda.is_current_stream_capturing():
                # The kernel refuses one token where none is given, and tells.
                part.params.num_tokens, part.params.given_tokens = self._token_counts[1:].data_ptr(), 0
                self._launch("tandem_dispatch_send", part, 2)
            raise

    def _receive(self, flight: Flight) -> Dispatched:
        part = self._part_of(flight)
        if not part.params.both_halves:
            self._launch("tandem_dispatch_recv", part, self._blocks_for_spreading(part.params.chunks))
        return Dispatched(Rows(part.numbers, part.scales), part.target)

    def _take_answers(self, flight: Flight, answers: torch.Tensor) -> Part:
        part = self._part_of(flight)
        with self._done_or_refused(part):
            check_rows(self._shape, answers, "Answers", "slots")
            check_memory(answers, "Answers", self._device)
        part.held = (*part.held, answers)
        params = part.params
        params.expert_out, params.given_rows, params.both_halves = answers.data_ptr(), len(answers), 0
        params.copy_expert_out = int(not self._dedup and answers.data_ptr() != part.answers.data_ptr())
        return part

    def _end(self, part: Part, out: torch.Tensor | None) -> torch.Tensor:
        x = part.held[0]
        out = torch.empty_like(x) if out is None else out
        if out.dtype is not x.dtype or out.shape != x.shape:
            raise BadRequest(f"The output must be {x.dtype} {[*x.shape]}, not {out.dtype} {[*out.shape]}.")
        check_memory(out, "The output", self._device)
        part.params.out = out.data_ptr()
        slices = self._shape.max_tokens * -(-kernel_columns(self._shape) // 256)
        blocks = min(self._num_sms * BLOCKS_PER_SM, -(-slices // WARPS_RECEIVING))
        self._launch("tandem_combine_recv", part, blocks)
        part.flight, part.held = None, ()
        return out

    def _launch(self, name: str, part: Part, blocks: int) -> None:
        stream = torch.cuda.current_stream(self._device).cuda_stream
        with torch.cuda.device(self._device):
            self._library.call(name, ctypes.byref(part.params), self._dedup, blocks, stream)

    def _blocks_for_spreading(self, chunks: int) -> int:
        shape = self._shape
        slices = shape.num_ranks * shape.max_tokens * -(-kernel_columns(shape) // SPREAD_COLUMNS)
        # In chunks it runs beside the blocks that send, which leave room for one on each multiprocessor.
        room = self._num_sms * (BLOCKS_PER_SM if chunks == 1 else 1)
        return min(room, -(-slices // WARPS_SENDING))

    def _blocks_for_slices(self) -> int:
        shape = self._shape
        slices = shape.num_ranks * shape.max_tokens * -(-kernel_columns(shape) // 256)
        return min(self._num_sms * BLOCKS_PER_SM, -(-slices // WARPS_SENDING))

    def _part_of(self, flight: Flight) -> Part:
        self._check_sound()
        part = self._parts[flight % len(self._parts)]
        if part.flight != flight:
            raise RankGone(f"Flight {flight} is not under way.")
        return part

    def _check_sound(self) -> None:
        fault = int(self._words.status[0])
        if not fault:
            return
        status = self.status
        if fault == TIMED_OUT:
            raise RankGone(
                f"Rank {status.peer} did not come in phase {status.phase.name} of step {status.epoch} "
                f"({status.seen} of {status.expected} ranks had); start the group again without it."
            )
        if fault == PEER_REFUSED:
            raise RankGone(
                f"Rank {status.peer} was given what it cannot do and takes no part in step {status.epoch}; "
                "its own error says why; start the group again."
            )
        raise BadRequest(f"In step {status.epoch} {REFUSALS[fault]}; the group has to start again.")


def _bits(ranks: range | frozenset[int]) -> int:
    """A signed 64-bit number with these bits set."""
    bits = sum(1 << rank for rank in ranks)
    return bits - (1 << 64) if bits >> 63 else bits
