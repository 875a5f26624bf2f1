"""What travels between processes comes back as it was, and damaged bytes never raise."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.contract.errors import BadRequest
from router.contract.ids import EngineId, Epoch, TransferId
from router.contract.instance import KVIdentity, Mode
from router.contract.kv import KVLayout
from router.contract.notices import (
    Acknowledged,
    Cancelled,
    Granted,
    Left,
    Moved,
    Notice,
    Queued,
    Refused,
    Registered,
    Stopped,
    read_notice,
    write_notice,
)
from router.contract.rendezvous import PrefillDone, Registration
from router.contract.seal import NOTICE, Seal
from router.contract.tags import OPEN, TAG_BYTES, Tag, decode_tag
from router.contract.wire import (
    MAX_ID_CHARS,
    DecodeHandoff,
    PrefillHandoff,
    answer_params,
    prefill_params,
    push_params,
    read_handoff,
)
from tests.support.fleets import an_instance, layouts
from tests.support.notices import delivered

SEAL = Seal("k" * 32)

ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=MAX_ID_CHARS)
transfer_ids = ids.map(TransferId)
engine_ids = ids.map(EngineId)
blocks = st.lists(st.integers(0, 2**31), max_size=20).map(tuple)
tokens = st.integers(0, 2**31)


@st.composite
def tags(draw: st.DrawFn) -> Tag:
    num_writers, total = draw(st.integers(1, 2**16 - 1)), draw(st.integers(1, 2**32 - 1))
    return Tag(
        draw(st.binary(min_size=16, max_size=16)),
        draw(st.integers(0, 2**64 - 1).map(Epoch)),
        draw(st.integers(0, num_writers - 1)),
        num_writers,
        draw(st.integers(0, total - 1)),
        draw(st.sampled_from((total, OPEN))),
    )


@st.composite
def registrations(draw: st.DrawFn) -> Registration:
    first, second = draw(tokens), draw(tokens)
    return Registration(
        draw(transfer_ids),
        draw(st.sampled_from(Mode)),
        draw(engine_ids),
        draw(engine_ids),
        draw(blocks),
        min(first, second),
        max(first, second),
    )


dones = st.builds(PrefillDone, transfer_ids, blocks, tokens)
reasons = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
notices: st.SearchStrategy[Notice] = st.one_of(
    st.builds(Registered, registrations()),
    st.builds(Queued, transfer_ids, engine_ids, engine_ids),
    st.builds(Acknowledged, transfer_ids, engine_ids, engine_ids),
    st.builds(Granted, dones, engine_ids, engine_ids),
    st.builds(Moved, transfer_ids, engine_ids, engine_ids, reasons),
    st.builds(Cancelled, transfer_ids, engine_ids, engine_ids),
    st.builds(Stopped, transfer_ids, engine_ids, engine_ids, reasons, st.booleans()),
    st.builds(Left, engine_ids),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=8,
)


@given(tags())
def test_a_tag_comes_back_as_it_was(tag: Tag) -> None:
    assert len(tag.encode(SEAL)) == TAG_BYTES
    assert decode_tag(tag.encode(SEAL), SEAL) == tag


@given(tags(), st.data())
def test_a_damaged_tag_is_none(tag: Tag, data: st.DataObject) -> None:
    raw = bytearray(tag.encode(SEAL))
    position, change = data.draw(st.integers(0, TAG_BYTES - 1)), data.draw(st.integers(1, 255))
    raw[position] ^= change
    assert decode_tag(bytes(raw), SEAL) is None


@given(st.binary(max_size=2 * TAG_BYTES))
def test_bytes_of_another_width_or_magic_are_no_tag(raw: bytes) -> None:
    assert decode_tag(raw, SEAL) is None


@given(tags())
def test_a_tag_is_no_prefix_of_another(tag: Tag) -> None:
    assert decode_tag(tag.encode(SEAL) + b"\0", SEAL) is None
    assert decode_tag(tag.encode(SEAL)[:-1], SEAL) is None


@given(notices)
def test_a_notice_comes_back_as_it_was(notice: Notice) -> None:
    assert delivered(write_notice(notice, SEAL), notice, SEAL) == notice


@given(notices, st.data())
def test_a_damaged_notice_is_refused(notice: Notice, data: st.DataObject) -> None:
    raw = bytearray(write_notice(notice, SEAL))
    position, change = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(1, 255))
    raw[position] ^= change
    assert isinstance(delivered(bytes(raw), notice, SEAL), Refused)


@given(notices, st.data())
def test_a_notice_that_was_cut_short_is_refused(notice: Notice, data: st.DataObject) -> None:
    raw = write_notice(notice, SEAL)
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    assert isinstance(delivered(cut, notice, SEAL), Refused)


@given(st.sampled_from("RQAGMCXL?"), json_values)
def test_any_json_under_any_kind_never_raises(kind: str, body: object) -> None:
    signed = kind.encode() + json.dumps(body).encode()
    raw = b"TN2" + signed[:1] + SEAL.mark(NOTICE, signed) + signed[1:]
    read = read_notice(raw, SEAL, sender=EngineId("a"), receiver=EngineId("b"))
    assert isinstance(read, Notice | Refused)


@given(st.binary(max_size=60))
def test_a_tag_is_never_a_notice_nor_a_notice_a_tag(body: bytes) -> None:
    assert read_notice(b"TNDM" + body, SEAL, sender=EngineId("a"), receiver=EngineId("b")) is Refused.UNREADABLE
    assert decode_tag(b"TN2R" + body, SEAL) is None


def peer(engine_id: str, host: str, port: int) -> KVIdentity:
    layout = an_instance().kv
    assert layout is not None
    return KVIdentity(EngineId(engine_id), host, port, layout.layout, "same", (Mode.PUSH, Mode.PULL))


@given(transfer_ids, ids, ids, st.integers(1, 65535))
def test_a_push_leg_reads_what_the_router_wrote(transfer_id: TransferId, engine: str, host: str, port: int) -> None:
    written = json.loads(json.dumps(push_params(transfer_id, peer(engine, host, port))))
    assert read_handoff(written, "") == DecodeHandoff(transfer_id, Mode.PUSH, EngineId(engine), host, port)


@given(st.builds(PrefillDone, transfer_ids, blocks, tokens), ids, ids, st.integers(1, 65535))
def test_a_pull_leg_reads_what_prefill_answered(done: PrefillDone, engine: str, host: str, port: int) -> None:
    written = json.loads(json.dumps(answer_params(done, peer(engine, host, port))))
    assert read_handoff(written, "") == DecodeHandoff(done.transfer_id, Mode.PULL, EngineId(engine), host, port)


@given(transfer_ids)
def test_a_prefill_leg_reads_what_the_router_wrote(transfer_id: TransferId) -> None:
    assert read_handoff(json.loads(json.dumps(prefill_params(transfer_id))), "") == PrefillHandoff(transfer_id)


@given(json_values, st.text(max_size=5))
def test_any_params_are_a_handoff_or_none_or_a_bad_request(params: object, request_id: str) -> None:
    try:
        read = read_handoff(params, request_id)
    except BadRequest as refusal:
        assert refusal.param == "kv_transfer_params"
    else:
        assert read is None or isinstance(read, PrefillHandoff | DecodeHandoff)


@given(st.sampled_from(sorted(push_params(TransferId("t"), peer("e", "h", 1)))), json_values)
def test_any_value_in_any_field_is_read_or_refused(name: str, value: object) -> None:
    params = {**push_params(TransferId("t"), peer("e", "h", 1)), name: value}
    try:
        read = read_handoff(params, "r")
    except BadRequest as refusal:
        assert refusal.param == "kv_transfer_params"
    else:
        assert read is None or isinstance(read, DecodeHandoff)


@given(layouts())
def test_the_bytes_of_a_cache_are_those_of_its_tokens(layout: KVLayout) -> None:
    assert layout.total_bytes == layout.num_blocks * layout.block_tokens * layout.token_bytes
    assert layout.token_bytes == 2 * layout.num_layers * layout.slab_token_bytes


@given(layouts(), st.integers(0, 2**30))
def test_blocks_hold_their_tokens_and_one_less_would_not(layout: KVLayout, num_tokens: int) -> None:
    num_blocks = layout.blocks_for(num_tokens)
    assert num_blocks * layout.block_tokens >= num_tokens
    assert num_blocks == 0 or (num_blocks - 1) * layout.block_tokens < num_tokens


@pytest.mark.parametrize("size", ["num_layers", "num_kv_heads", "head_dim", "block_tokens", "num_blocks"])
@given(value=st.integers(-(2**40), 0))
def test_a_shape_that_cannot_be_is_refused(size: str, value: int) -> None:
    sizes = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 1, "block_tokens": 1, "num_blocks": 1, size: value}
    with pytest.raises(ValueError, match="at least 1"):
        KVLayout(**sizes, dtype="float32")
