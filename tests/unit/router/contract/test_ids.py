import pytest

from router.contract.ids import (
    Attempt,
    Epoch,
    InstanceId,
    RequestId,
    TransferId,
    digest_of,
    engine_id_of,
    request_of,
    transfer_id_of,
)


def test_ids_are_joined_readably() -> None:
    assert transfer_id_of(RequestId("req-1"), Attempt(2)) == "req-1.2"
    assert engine_id_of(InstanceId("p0"), Epoch(17)) == "p0@17"


@pytest.mark.parametrize(
    ("transfer_id", "request_id", "attempt"),
    [
        ("req-1.2", "req-1", 2),
        ("a.b.10", "a.b", 10),
        ("cmpl-7", "cmpl-7", 1),
        ("cmpl-7.x", "cmpl-7.x", 1),
        ("cmpl-7.", "cmpl-7.", 1),
        (".5", ".5", 1),
        ("x.-1", "x.-1", 1),
        ("x.²", "x.²", 1),
        ("x.1234567890", "x.1234567890", 1),
        ("", "", 1),
    ],
)
def test_a_transfer_id_tells_its_request_and_attempt(transfer_id: str, request_id: str, attempt: int) -> None:
    assert request_of(TransferId(transfer_id)) == (request_id, attempt)


def test_a_digest_is_sixteen_bytes_and_depends_on_every_character() -> None:
    digests = {digest_of(TransferId(name)) for name in ("req-1.1", "req-1.10", "req-1.2", "req-2.1", "")}
    assert {len(digest) for digest in digests} == {16}
    assert len(digests) == 5
    assert digest_of(TransferId("req-1.1")).hex() == "97cb1914415502aaf319153f71ec1598"
