"""Instances and loads for tests: one plain example of each, and strategies for all of them."""

from __future__ import annotations

from hypothesis import strategies as st

from router.contract.ids import EngineId, Epoch, InstanceId, engine_id_of
from router.contract.instance import Instance, KVIdentity, Load, Mode, Role
from router.contract.kv import DTYPE_BYTES, KVLayout, KVOrder


def an_instance(instance_id: str = "p0", epoch: int = 7, role: Role = Role.PREFILL) -> Instance:
    """A plain instance that can hand KV cache over."""
    identity = KVIdentity(
        engine_id=engine_id_of(InstanceId(instance_id), Epoch(epoch)),
        side_channel_host="127.0.0.1",
        side_channel_port=9100,
        layout=KVLayout(num_layers=2, num_kv_heads=1, head_dim=4, block_tokens=16, num_blocks=8, dtype="float32"),
        compat_hash="same",
        modes=(Mode.PUSH, Mode.PULL),
    )
    return Instance(InstanceId(instance_id), role, Epoch(epoch), "http://127.0.0.1:9000", "tiny", 2048, identity)


counts = st.integers(0, 2**40)
sizes = st.integers(1, 2**20)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def layouts() -> st.SearchStrategy[KVLayout]:
    """All shapes of a KV cache."""
    orders, dtypes = st.sampled_from(KVOrder), st.sampled_from(sorted(DTYPE_BYTES))
    return st.builds(KVLayout, sizes, sizes, sizes, sizes, sizes, dtypes, orders)


def instances() -> st.SearchStrategy[Instance]:
    """Instances with and without a KV identity."""
    modes = st.lists(st.sampled_from(Mode), unique=True).map(tuple)
    identities = st.builds(
        KVIdentity, texts.map(EngineId), texts, st.integers(1, 65535), layouts(), texts, modes, sizes, sizes, counts
    )
    return st.builds(
        Instance,
        texts.map(InstanceId),
        st.sampled_from(Role),
        counts.map(Epoch),
        texts,
        texts,
        counts,
        st.none() | identities,
        st.booleans(),
    )


def loads() -> st.SearchStrategy[Load]:
    """Any load."""
    return st.builds(Load, *[counts] * 8)
