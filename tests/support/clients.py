"""A ClientPort that keeps what it is told."""

from __future__ import annotations

from dataclasses import dataclass, field

from router.contract.errors import TandemError
from router.legs.answer import Answer


@dataclass(slots=True)
class KeptClient:
    """What a client of an exchange got."""

    request_id: str = ""
    head: tuple[int, list[tuple[bytes, bytes]], int | None] | None = None
    body: bytes = b""
    ended: bool = False
    answered: Answer | None = None
    refused: TandemError | None = None
    broken: tuple[TandemError, bool] | None = None
    abandoned: bool = False
    writes: list[bytes] = field(default_factory=list)
    takes_chunks: bool = False
    """Whole chunks may come as such; they are kept in `chunks`."""
    chunks: list[bytes] = field(default_factory=list)

    def name(self, request_id: str) -> None:
        self.request_id = request_id

    def begin(self, status, headers, length) -> None:
        assert self.head is None and not self.over
        self.head = (status, headers, length)

    def write(self, body: bytes, *, ended: bool) -> None:
        assert self.head is not None and not self.over
        self.writes.append(body)
        self.body += body
        self.ended = ended

    def chunk_writer(self):
        return self.chunks.append if self.takes_chunks else None

    def answer(self, answer: Answer) -> None:
        assert not self.over
        self.answered = answer

    def refuse(self, error: TandemError) -> None:
        assert not self.over
        self.refused = error

    def break_off(self, error: TandemError, *, stream: bool) -> None:
        assert self.head is not None and not self.over
        self.broken = (error, stream)

    def abandon(self) -> None:
        self.abandoned = True

    @property
    def over(self) -> bool:
        return bool(self.ended or self.answered or self.refused or self.broken or self.abandoned)
