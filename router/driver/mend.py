"""Mend: a prompt computed once more, under the id of an attempt that is over, to give plain decode its blocks back.

In push mode a stock vLLM decode frees the blocks of a request that it has registered when prefill's WRITE arrives, and
not before, whatever becomes of the request. When prefill has failed in between, or its lease has ended before decode
came to register, decode's blocks are lost until it is restarted, unless prefill does its part after all: under the same
id the registration is still there, and the WRITE goes where nobody reads any more. Another start of prefill knows of no
registration and frees nothing.
"""

from __future__ import annotations

import logging
from collections import Counter
from time import monotonic
from typing import TYPE_CHECKING

from router.contract.errors import LegError
from router.contract.instance import EngineKind, Mode
from router.legs.connection import Headers
from router.legs.decode import DecodeLeg
from router.legs.hand_over import read_hand_over
from router.legs.leg import Leg
from router.legs.prefill import PrefillLeg

if TYPE_CHECKING:
    from router.core.placement import Placement

LOG = logging.getLogger("tandem.router")

DELAYS_S = (0.2, 1.0, 5.0)
"""Before each try."""
TRY_S = 30.0
"""How long a try may take."""

FREED, LOST = "freed", "lost"
_PUSH, _VLLM = Mode.PUSH, EngineKind.VLLM


def pushes_to_vllm(placement: Placement) -> bool:
    """True where decode is a stock vLLM that waits for a WRITE."""
    decode = placement.decode
    return placement.mode is _PUSH and decode is not None and decode.instance.engine is _VLLM


def strands_seats(placement: Placement, decode: DecodeLeg | None) -> bool:
    """True when a prefill that does not do its part leaves decode with blocks that nobody can free.

    A stock decode that has registered keeps its blocks until prefill's WRITE arrives, even when its own request has
    been aborted. One that has refused the request (4xx) has registered nothing.
    """
    if decode is None or not pushes_to_vllm(placement):
        return False
    return not (decode.ended and 400 <= decode.status < 500)


class Mend:
    """Of one attempt; swept among others until it has ended one way or the other."""

    __slots__ = ("_among", "_counts", "_leg", "_pattern", "_placement", "_tries", "due_at")

    def __init__(self, pattern: PrefillLeg, placement: Placement, among: set[Mend], counts: Counter[str]) -> None:
        """`pattern` is the leg that has failed, `placement` that of its attempt; what comes of it is counted."""
        self._pattern = pattern
        self._placement = placement
        self._among = among
        self._counts = counts
        self._leg: Leg | None = None
        self._tries = 0
        self.due_at = monotonic() + DELAYS_S[0]
        among.add(self)

    def on_due(self, now: float) -> None:
        """It is time for a try, or a try has taken too long."""
        if self._leg is not None:
            self._leg.cancel()
            self._fail(now)
            return
        self._tries += 1
        self.due_at = now + TRY_S
        self._leg = self._pattern.once_more(self)

    def on_prefill_answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Prefill has computed the prompt, and writes it; or it has refused."""
        if not 200 <= status < 300:
            self._fail(monotonic())
            return
        prefill = self._placement.prefill
        if prefill is not None and isinstance(read_hand_over(body, prefill.instance, _PUSH), bytes):
            self._end(FREED)
        else:
            self._lose()

    def on_decode_bytes(self, leg: Leg, body: bytes, *, ended: bool) -> None:
        """A prefill leg has none."""

    def on_leg_failed(self, leg: Leg, error: LegError) -> None:
        """Prefill is not there."""
        self._fail(monotonic())

    def _fail(self, now: float) -> None:
        self._leg = None
        if self._tries < len(DELAYS_S):
            self.due_at = now + DELAYS_S[self._tries]
            return
        self._lose()

    def _lose(self) -> None:
        decode = self._placement.decode.instance.instance_id if self._placement.decode is not None else ""
        LOG.error("instance %s keeps blocks that nobody will write; it needs a restart to get them back", decode)
        self._end(LOST)

    def stop(self) -> None:
        """Nothing more is tried."""
        if self._leg is not None:
            self._leg.cancel()
        self._among.discard(self)

    def _end(self, result: str) -> None:
        self._counts[result] += 1
        self._among.discard(self)
