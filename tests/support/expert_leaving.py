"""Rank processes that leave a group, stay away, or go on without others: told by name, as `crew_of` wants."""

from __future__ import annotations

import time

import torch

from engine_shim.bench.expert_processes import Link
from engine_shim.experts.group import ExpertGroup
from engine_shim.experts.port import Flight
from router.contract.errors import BadRequest, TandemError

Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def given(group: ExpertGroup, width: int = 0) -> Given:
    """Two tokens, each with an expert of every rank: top_k is the number of ranks."""
    shape = group.shape
    topk = (torch.arange(shape.top_k) * shape.local_experts).expand(2, -1)
    return torch.ones(2, width or shape.hidden_size), topk, torch.ones(topk.shape)


def take_step(group: ExpertGroup) -> float:
    """How many ranks have answered a token; their experts change nothing."""
    flight = group.dispatch_send(*given(group))
    group.combine_send(flight, group.dispatch_receive(flight).rows.numbers)
    return float(group.combine_receive(flight)[0, 0])


def leave(group: ExpertGroup, link: Link) -> None:
    """Rank 1 leaves at the word that comes, and stays alive; the others tell what their step says, and when."""
    word = link.recv()
    take_step(group)
    try:
        if group.rank == 1:
            _leave_at(word, group)
            link.send(time.monotonic())
        else:
            take_step(group)
            take_step(group)
    except TandemError as error:
        link.send((time.monotonic(), error.message))
    link.recv()


def _leave_at(word: str, group: ExpertGroup) -> None:
    flight: Flight | None = None
    if word != "between steps":
        flight = group.dispatch_send(*given(group))
    if word == "a later flight is refused":
        try:
            group.dispatch_send(*given(group, width=3))
        except BadRequest:
            return
    if flight is not None and word != "rows sent":
        rows = group.dispatch_receive(flight).rows.numbers
        if word == "answers sent":
            group.combine_send(flight, rows)
    group.close()


def step_for(group: ExpertGroup, link: Link) -> None:
    """Steps for so many seconds as rank 0 says; then "right", or when and why a rank gave up."""
    until = time.monotonic() + link.recv()
    link.send("here")
    try:
        # All ranks take equally many: rank 0 brings no token in the last one.
        going = True
        while going:
            going = group.rank != 0 or time.monotonic() < until
            x, topk, weights = given(group)
            flight = group.dispatch_send(x, topk, weights, num_tokens=2 if going else 0)
            found = group.dispatch_receive(flight)
            going = int(found.target.expert_counts.sum()) == 2 * group.shape.num_ranks
            group.combine_send(flight, found.rows.numbers)
            group.combine_receive(flight)
        link.send("right")
    except TandemError as error:
        link.send((time.monotonic(), error.message))
    link.recv()


def go_on_without(group: ExpertGroup, link: Link) -> None:
    """A step of all; once the ranks that are lost are told, ten steps of the others, and who answered in each."""
    link.send(take_step(group))
    group.mask(link.recv())
    link.send([take_step(group) for _ in range(10)])
    link.recv()
