import re

import pytest
from redis.asyncio import Redis

from router.contract.errors import StoreDown
from router.contract.rendezvous import JOIN
from router.store.scripts import Script, join_table, read_join_script, read_script

ROW = re.compile(r'\["(\w+) (\w+)"\]=\{"(\w+)","([\w,]*)"\}')


def test_the_lua_table_holds_every_row_of_join_and_no_other() -> None:
    rows = {
        (before, arrival): (after, tuple(filter(None, effects.split(","))))
        for before, arrival, after, effects in ROW.findall(join_table())
    }
    assert rows == JOIN


def test_a_script_is_its_files_one_after_the_other() -> None:
    text = read_script("clock", "claim").text
    assert text.index("local now_ms") < text.index("local epoch")
    walked = read_join_script("post").text
    assert walked.index("local JOIN") < walked.index("local function walk") < walked.index("cmsgpack.unpack")


@pytest.mark.needs("redis")
async def test_a_server_that_does_not_know_a_script_is_taught(redis: Redis, namespace: str) -> None:
    script = Script(f"return {{KEYS[1], ARGV[1], '{namespace}'}}")
    assert await redis.script_exists(script.digest) == [False]
    for _ in range(2):
        assert await script.run(redis, ("key",), 7) == [b"key", b"7", namespace.encode()]
    assert await redis.script_exists(script.digest) == [True]


@pytest.mark.needs("redis")
async def test_a_script_that_fails_is_store_down(redis: Redis) -> None:
    with pytest.raises(StoreDown, match="no such thing"):
        await Script("return redis.error_reply('no such thing')").run(redis, ())
