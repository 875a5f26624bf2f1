import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError

from router.contract.errors import StoreDown
from router.contract.ids import TransferId
from router.contract.ledger import Arrived, Noted
from router.contract.rendezvous import Arrival
from router.store.batch import Batch, build_batches
from router.store.delivery import POST, Delivery, Refused, Unwritten, Written, deliver

BATCH = Batch((b"open", b"request"), b"", 1)


class ScriptedRedis:
    """Answers every pipeline with the given replies, and remembers what it was asked to do about them."""

    def __init__(self, *replies: object) -> None:
        self.replies = list(replies)
        self.done: list[str] = []

    def pipeline(self, transaction: bool) -> "ScriptedRedis":
        assert not transaction
        return self

    def execute_command(self, name: str, digest: str, num_keys: int, *_keys_and_arguments: object) -> None:
        assert (digest, num_keys) == (POST.digest, len(BATCH.keys))
        self.done.append(name)

    async def execute(self, raise_on_error: bool) -> list[object]:
        assert not raise_on_error
        return self.replies

    async def script_load(self, text: str) -> None:
        assert text == POST.text
        self.done.append("script_load")


async def reconnect(redis: ScriptedRedis) -> None:
    redis.done.append("reconnect")


FAULT = "user_script:33: attempt to index a nil value script: 0f3, on @user_script:33."


@pytest.mark.parametrize(
    ("reply", "becomes", "then"),
    [
        ([2, b"", b"", b""], Written(2), []),
        (NoScriptError("No matching script"), Unwritten("No matching script", again_at_once=True), ["script_load"]),
        (ReadOnlyError("replica"), Unwritten("replica", again_at_once=False), ["reconnect"]),
        (OutOfMemoryError("full"), Unwritten("full", again_at_once=False), []),
        (ResponseError("MISCONF no disk"), Unwritten("MISCONF no disk", again_at_once=False), []),
        (ResponseError(f"-OOM full: {FAULT}"), Unwritten(f"-OOM full: {FAULT}", again_at_once=False), []),
        (ResponseError(FAULT), Refused(FAULT), []),
        (RedisConnectionError("gone"), Unwritten("gone", again_at_once=False), []),
        (TimeoutError(), Unwritten("TimeoutError", again_at_once=False), []),
    ],
)
async def test_what_becomes_of_a_batch(
    reply: object, becomes: Delivery, then: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.store.delivery.reconnect", reconnect)
    redis = ScriptedRedis(reply)
    assert await deliver(redis, "w", [BATCH]) == [becomes]  # type: ignore[arg-type]
    assert redis.done == ["EVALSHA", *then]


async def test_a_server_that_speaks_another_language_is_store_down() -> None:
    with pytest.raises(StoreDown):
        await deliver(ScriptedRedis(b"OK"), "w", [BATCH])  # type: ignore[arg-type]


@pytest.mark.needs("redis")
async def test_batches_are_judged_one_by_one(redis: Redis, namespace: str) -> None:
    (good,) = build_batches(namespace, [(0.0, Noted(TransferId("req-1.1"), "x"))])
    (late,) = build_batches(namespace, [(0.0, Arrived(TransferId("req-2.1"), Arrival.PREFILLED))])
    (newer,) = build_batches(namespace, [(0.0, Arrived(TransferId("req-2.2"), Arrival.PREFILLED))])
    garbled = Batch(late.keys, b"\xc1", 1)
    await redis.script_load(POST.text)
    written, refused, *others = await deliver(redis, "w", [good, garbled, newer, late])
    assert written == Written(0)
    assert isinstance(refused, Refused)
    assert others == [Written(0), Written(1)]
