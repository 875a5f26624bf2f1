from __future__ import annotations

from engine_shim.engine.reference.block_names import BlockNames


def test_a_name_stands_for_all_tokens_up_to_its_end():
    first = BlockNames(2).up_to([1, 2, 3, 4, 5], 2)
    assert BlockNames(2).up_to([1, 2, 3, 4, 9], 2) == first
    assert BlockNames(2).up_to([1, 2, 3, 5], 2)[0] == first[0]
    assert BlockNames(2).up_to([1, 2, 3, 5], 2)[1] != first[1]
    assert BlockNames(2).up_to([9, 2, 3, 4], 2)[1] != first[1]
    assert len(set(first)) == 2


def test_names_grow_with_the_tokens():
    names = BlockNames(2)
    assert names.up_to([1, 2], 1) == BlockNames(2).up_to([1, 2, 3, 4], 2)[:1]
    assert names.up_to([1, 2, 3, 4], 2) == BlockNames(2).up_to([1, 2, 3, 4], 2)
    assert len(names.up_to([1, 2, 3, 4], 1)) == 1
