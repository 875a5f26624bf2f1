"""What shims say to each other in a self-test: paths, bodies, answers. Every call carries the deployment's seal."""

from __future__ import annotations

import msgspec

LEND_PATH, CHECK_PATH, RETURN_PATH = "/kv/scratch/lend", "/kv/scratch/check", "/kv/scratch/return"
SCRATCH = "scratch:"
"""How every scratch_id begins."""


class Lend(msgspec.Struct):
    """Wanted: seats for `num_tokens` tokens that `borrower` will write into."""

    scratch_id: str
    borrower: str
    num_tokens: int


class Lent(msgspec.Struct):
    """Seats that belong to the borrower until it returns them."""

    blocks: tuple[int, ...]


class Check(msgspec.Struct):
    """Wanted: how much of the pattern is there."""

    scratch_id: str
    num_tokens: int
    seed: int


class Checked(msgspec.Struct):
    """Bytes that differ from the pattern."""

    wrong_bytes: int


class Return(msgspec.Struct):
    """Nothing of the borrower's can land in these seats any more."""

    scratch_id: str


class Returned(msgspec.Struct):
    """That is so."""


class Run(msgspec.Struct):
    """One WRITE."""

    num_bytes: int
    num_spans: int
    seconds: float
    """From the order to its observed end, the threads' polling included."""
    wrong_bytes: int


class Verdict(msgspec.Struct):
    """A self-test that has come to its end."""

    handshake_s: float
    runs: tuple[Run, ...]
