from collections.abc import Iterator

import torch

from engine_shim.engine.reference.walk import Walk, finish, in_turns


def walk(name: str, pauses: int, seen: list[str]) -> Walk:
    for number in range(pauses):
        seen.append(f"{name}{number}")
        yield
    seen.append(f"{name} ends")
    return torch.tensor(len(name))


def test_each_goes_on_to_its_next_pause_in_turn() -> None:
    seen: list[str] = []
    results = in_turns([walk("a", 2, seen), walk("bb", 1, seen)])
    assert seen == ["a0", "bb0", "a1", "bb ends", "a ends"]
    assert [int(one) for one in results] == [1, 2]


def test_one_alone_is_waited_out() -> None:
    seen: list[str] = []
    one: Iterator[None] = walk("a", 2, seen)
    assert int(finish(one)) == 1  # type: ignore[arg-type]
    assert seen == ["a0", "a1", "a ends"]
