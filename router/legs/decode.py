"""The decode leg: the client's own body with the hand-over spliced in, and an answer that goes through as it is."""

from __future__ import annotations

from router.contract.errors import Blame
from router.legs.connection import Connection
from router.legs.leg import Leg


def decode_body(body: bytes, params: bytes) -> bytes:
    """`body`, a JSON object with at least one member, with `params` added as its last member, kv_transfer_params.

    Every byte of the client's stays where it is, so nothing that a re-encoding might change can change.
    """
    return b'%b,"kv_transfer_params":%b}' % (body[: body.rindex(b"}")], params)


class DecodeLeg(Leg):
    """Reports every piece of the answer as it comes."""

    side = Blame.DECODE

    def on_answer(self, connection: Connection, body: bytes, ended: bool) -> None:
        """Report it."""
        if not self.status:
            self.status, self.headers = connection.status, connection.headers
        if ended:
            self.connection = None
            self.ended = True
        self.owner.on_decode_bytes(self, body, ended=ended)
