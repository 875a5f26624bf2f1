"""Recall: KV of earlier turns comes back to a simulated prefill; mirrors `engine_shim.driver.recall`, both sides."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from engine_shim.engine.port import Purpose
from engine_shim.simulation.engine import Prompt
from engine_shim.simulation.messages import Kept, LegCall, Wanted
from engine_shim.simulation.network import Connection, Ending
from engine_shim.simulation.running import Nobody, Running
from router.contract.errors import TandemError
from router.contract.ids import TransferId
from router.contract.instance import Mode
from router.contract.wire import DecodeHandoff, Keeper, PrefillHandoff, Waits

if TYPE_CHECKING:
    from engine_shim.simulation.shim import Shim

ROW_S = 0.03
"""The row that the keeper computes lasts so long."""


class Recall:
    """Of one shim."""

    def __init__(self, shim: Shim) -> None:
        self._shim = shim
        self._fetches: dict[TransferId, Fetch] = {}
        """By the id under which KV comes back."""

    @property
    def num_held(self) -> int:
        """Legs that wait for KV to come back."""
        return len(self._fetches)

    # Prefill's side.

    def fetch(self, connection: Connection, call: LegCall) -> None:
        """The leg begins when what its keeper has is here, or does not come."""
        shim, handoff = self._shim, call.handoff
        assert isinstance(handoff, PrefillHandoff) and handoff.keeper is not None
        here = shim.engine.num_cached(call.prompt)
        if call.prompt.num_blocks - here <= 1:
            shim.begin_prefill(connection, call)
            return
        recall_id = self._id_of(handoff.transfer_id)
        fetch = self._fetches[recall_id] = Fetch(shim, connection, call, handoff.keeper, recall_id)
        shim.tell(f"asks {handoff.keeper.engine_id} for more than {here} blocks", recall_id)
        shim.scene.on_moment("recall", shim.name)
        shim.scene.timeline.timer(shim.scene.pace.recall_s, shim, self._on_late, fetch)
        host = shim.scene.network.host(handoff.keeper.host)
        shim.scene.network.call(shim, host, Wanted(recall_id, here, call.prompt), fetch)

    def on_kv_ready(self, transfer_id: TransferId) -> None:
        """All of it has come back, if it is that."""
        if transfer_id in self._fetches:
            self.end(transfer_id, "taken")

    def end(self, recall_id: TransferId, result: str) -> bool:
        """Nothing more of this comes, and the leg begins; False where nothing was awaited."""
        fetch = self._fetches.pop(recall_id, None)
        if fetch is None:
            return False
        shim = self._shim
        shim.scene.counts[f"recall: {result}"] += 1
        shim.tell(f"recall {result}", recall_id)
        fetch.close()
        if fetch.leg.is_open_for(shim):
            shim.begin_prefill(fetch.leg, fetch.call)
        return True

    def on_caller_lost(self, connection: Connection) -> None:
        """Whoever has sent this leg has left."""
        for recall_id, fetch in self._fetches.items():
            if fetch.leg is connection:
                self.end(recall_id, "not wanted")
                return

    def leave(self) -> None:
        """What waits goes on without; it then finds that the instance is shutting down."""
        for recall_id in list(self._fetches):
            self.end(recall_id, "failed")

    def _on_late(self, fetch: Fetch) -> None:
        if self._fetches.get(fetch.recall_id) is fetch:
            self.end(fetch.recall_id, "late")

    def _id_of(self, transfer_id: TransferId) -> TransferId:
        return transfer_id if "recall_has_own_id" in self._shim.scene.off else TransferId(f"{transfer_id}.recall")

    # The keeper's side.

    def give(self, connection: Connection, wanted: Wanted) -> None:
        """What is kept here beyond what the other has is on its way to it as soon as it registers."""
        shim, transfer_id = self._shim, wanted.transfer_id
        kept = shim.engine.num_cached(wanted.prompt)
        if not shim.ready or kept <= wanted.num_cached or transfer_id in shim.running:
            connection.send(shim, Kept(0))
            return
        if not shim.prefill.desk.on_leg(transfer_id, shim.scene.now):
            connection.send(shim, Kept(0))
            return
        shim.tell(f"gives {kept} blocks back", transfer_id)
        shim.scene.on_moment("recall", shim.name)
        call = LegCall(PrefillHandoff(transfer_id), part_of(wanted.prompt, kept), shim.scene.pace.recall_s)
        shim.run(Running(call, Nobody()), Purpose.HOLD, ahead=True)
        connection.send(shim, Kept(kept))


class Fetch:
    """KV that one leg waits for."""

    def __init__(self, shim: Shim, leg: Connection, call: LegCall, keeper: Keeper, recall_id: TransferId) -> None:
        self.leg, self.call, self.recall_id = leg, call, recall_id
        self._shim, self._keeper = shim, keeper
        self._over = self._opened = False

    def close(self) -> None:
        """Its own sequence is over; its seats may not be free yet."""
        self._over = True
        if self._opened:
            self._shim.engine.abort(self.recall_id)
            self._shim.decode.on_left(self.recall_id)

    def on_message(self, connection: Connection, message: object) -> None:
        """The keeper has answered."""
        connection.finish()
        if self._over:
            return
        if isinstance(message, Kept) and message.num_blocks:
            part = part_of(self.call.prompt, message.num_blocks)
            self._shim.acquaintances.ensure(self._keeper.engine_id, partial(self._on_met, part))
        else:
            self._shim.recall.end(self.recall_id, "nothing")

    def on_lost(self, connection: Connection, ending: Ending) -> None:
        """The keeper does not answer."""
        if not self._over:
            self._shim.recall.end(self.recall_id, "failed")

    def _on_met(self, part: Prompt, error: TandemError | None) -> None:
        if self._over:
            return
        shim, keeper, wait_s = self._shim, self._keeper, self._shim.scene.pace.recall_s
        waits = Waits(wait_s, wait_s)
        handoff = DecodeHandoff(self.recall_id, Mode.PUSH, keeper.engine_id, keeper.host, keeper.port, waits)
        if error is not None or shim.decode.open(handoff) is not None:
            shim.recall.end(self.recall_id, "failed")
            return
        self._opened = True
        shim.engine.add(self.recall_id, Purpose.RECEIVE, part, ahead=True)


def part_of(prompt: Prompt, num_blocks: int) -> Prompt:
    """The beginning of this prompt that is so many blocks and one token long."""
    return replace(prompt, num_blocks=num_blocks + 1, last_tokens=1, prefill_for_s=ROW_S, cached=False)
