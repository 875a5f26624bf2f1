"""Responses: which instance holds the state of an answer of /v1/responses, for whoever goes on from it.

Engines keep such answers in their own memory, so a request with `previous_response_id` can be served there alone. The
id is in the answer, and it is remembered as the answer begins. This process knows its own answers only, the newest
KEPT of them; where one engine serves the endpoint, nothing need be known.
"""

from __future__ import annotations

import msgspec

from router.contract.ids import Epoch, InstanceId
from router.contract.instance import Instance
from router.core.opening import first_event, payload_of
from router.core.roster import Roster

KEPT = 10_000


class _Named(msgspec.Struct, gc=False):
    id: str


class _Begun(msgspec.Struct, gc=False):
    response: _Named


_WHOLE, _BEGUN = msgspec.json.Decoder(_Named), msgspec.json.Decoder(_Begun)
_TEXT = msgspec.json.Decoder(str)


class Responses:
    """Of one router process."""

    __slots__ = ("_holders",)

    def __init__(self) -> None:
        self._holders: dict[str, tuple[InstanceId, Epoch]] = {}

    def learn(self, instance: Instance, answer: bytes, *, streamed: bool) -> None:
        """This start of `instance` holds what it answers; of a stream, `answer` has the first event at least."""
        try:
            if streamed:
                name = _BEGUN.decode(payload_of(first_event(answer + b"\n\n") or b"")).response.id
            else:
                name = _WHOLE.decode(answer).id
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return
        self._holders.pop(name, None)
        self._holders[name] = instance.instance_id, instance.epoch
        if len(self._holders) > KEPT:
            del self._holders[next(iter(self._holders))]

    def holding(self, members: Roster, previous: bytes) -> Roster | None:
        """Those of `members` that may hold the answer with the id `previous`, a JSON value; None: nobody known does."""
        try:
            holder = self._holders.get(_TEXT.decode(previous))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if holder is None:
            return members if len(members) == 1 else None
        name, epoch = holder
        held = [one for one in members if (one.instance.instance_id, one.instance.epoch) == (name, epoch)]
        return Roster(held) if held else None
