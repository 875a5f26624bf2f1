from dataclasses import replace

import pytest

from router.contract.instance import EngineKind, Mode, Role
from router.core.pairing import feeds
from tests.support.instances import instance

PUSH, PULL = Mode.PUSH, Mode.PULL


def plain(role, **kv):
    made = instance("x", role)
    return replace(made, engine=EngineKind.VLLM, kv=replace(made.kv, layout=None, **kv))


@pytest.mark.parametrize(
    ("prefill", "decode", "modes"),
    [
        ({}, {}, (PUSH, PULL)),
        ({"modes": (PUSH,)}, {}, (PUSH,)),
        ({"modes": (PUSH,)}, {"modes": (PULL,)}, ()),
        ({"compat_hash": "other"}, {}, ()),
        ({"tp_size": 2}, {"tp_size": 4}, (PUSH, PULL)),
        ({"tp_size": 4}, {"tp_size": 2}, (PUSH, PULL)),
        ({"tp_size": 2}, {"tp_size": 3}, ()),
        ({"tp_size": 3}, {"tp_size": 0}, (PUSH, PULL)),
        ({"tp_size": 0}, {"tp_size": 0}, (PUSH, PULL)),
        ({"pp_size": 2}, {}, (PUSH,)),
        ({}, {"pp_size": 2}, ()),
        ({"block_tokens": 64}, {"block_tokens": 128}, (PULL,)),
        ({"block_tokens": 128}, {"block_tokens": 64}, (PUSH,)),
        ({"block_tokens": 128}, {"block_tokens": 96}, ()),
        ({"block_tokens": 128, "tp_size": 2}, {"block_tokens": 64, "tp_size": 1}, ()),
        ({"block_tokens": 128, "tp_size": 2}, {"block_tokens": 128, "tp_size": 1}, (PUSH, PULL)),
        ({"block_tokens": 0}, {"block_tokens": 96}, (PUSH, PULL)),
    ],
)
def test_plain_servers_are_paired_by_the_rules_of_their_connectors(prefill, decode, modes):
    p, d = plain(Role.PREFILL, **prefill), plain(Role.DECODE, **decode)
    assert tuple(mode for mode in (PUSH, PULL) if feeds(p, d, mode)) == modes


def test_shims_are_paired_by_their_hash_alone():
    p, d = instance("p", Role.PREFILL), instance("d", Role.DECODE)
    p = replace(p, kv=replace(p.kv, tp_size=3))
    d = replace(d, kv=replace(d.kv, tp_size=2))
    assert feeds(p, d, PUSH)


def test_engines_of_two_kinds_or_without_an_identity_are_never_paired():
    assert not feeds(instance("p", Role.PREFILL), plain(Role.DECODE), PUSH)
    assert not feeds(instance("p", Role.PREFILL), instance("d", Role.DECODE, kv=False), PUSH)
    assert not feeds(instance("p", Role.PREFILL, kv=False), instance("d", Role.DECODE), PUSH)
