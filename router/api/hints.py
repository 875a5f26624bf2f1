"""Hints: what a client may say of a request's place beside its body, as far as the settings listen.

session header   requests with the same value belong together (policy `session`)
mode header      `push`, `pull`, `local`: only so; several by commas: one of them; `!local`: any but this
explain header   `1`: the answer says in headers how the request was served (see `router.driver.told`)
model alias      another name for a model; the body goes on with the model's own
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from router.api.intake import rename_model
from router.contract.errors import BadRequest
from router.contract.instance import Mode
from router.core.intake import Intake

_MODES = frozenset(Mode)


@dataclass(frozen=True, slots=True)
class Hints:
    """Names of headers in lower case, empty for none, and the aliases of models."""

    session_header: bytes = b""
    mode_header: bytes = b""
    aliases: Mapping[str, str] = field(default_factory=dict)
    explain_header: bytes = b""

    @property
    def listens(self) -> bool:
        """False when there is nothing to look for."""
        return bool(self.session_header or self.mode_header or self.explain_header or self.aliases)

    def apply(self, intake: Intake, headers: Mapping[bytes, bytes]) -> None:
        """The intake says what the hints said.

        Raises:
            BadRequest: the mode header is none, or forbids the only way in which the request can be served.
        """
        if self.session_header and (session := headers.get(self.session_header)):
            intake.session = session
        intake.explained = bool(self.explain_header) and headers.get(self.explain_header) == b"1"
        if self.mode_header and (wanted := headers.get(self.mode_header)) is not None:
            intake.allowed = _allowed(self.mode_header, wanted)
            if intake.whole and Mode.LOCAL not in intake.allowed:
                raise BadRequest(
                    f"This request cannot be split ({intake.whole}), and {self.mode_header.decode()} forbids local; "
                    "leave out either.",
                    param=intake.whole,
                )
        model = self.aliases.get(intake.model)
        if model is not None:
            rename_model(intake, model)


def _allowed(header: bytes, value: bytes) -> frozenset[Mode]:
    names = value.decode("latin-1").lower().replace(" ", "").split(",")
    forbidden = {name[1:] for name in names if name.startswith("!")}
    named = {name for name in names if not name.startswith("!")}
    if not forbidden | named <= _MODES or not (allowed := frozenset(named or _MODES) - forbidden):
        raise BadRequest(f"{header.decode()} must name modes: push, pull, local, or !local for any but it.")
    return frozenset(Mode(name) for name in allowed)
