"""What a plain server is learned to be; a whole router before such servers is in tests/real/router/test_vllm.py."""

import pytest

from router.contract.errors import LegUnreachable
from router.contract.instance import EngineKind, Mode, Role
from router.discovery import vllm as module
from router.discovery.entry import Entry, Identity
from router.discovery.vllm import VllmServer
from router.legs.pool import LegPool, PoolLimits
from tests.support.vllm_servers import VllmServer as Engine
from tests.support.vllm_servers import Wire


@pytest.fixture
async def engine():
    made = Engine(Wire())
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
def looking(engine):
    """A function that makes a VllmServer for the engine."""
    pool = LegPool(engine.url, PoolLimits())
    yield lambda role, **fields: VllmServer(Entry(engine.url, role, **fields), pool)
    pool.close()


async def test_prefill_is_probed_once_and_stays_known(engine, looking):
    server = looking(Role.PREFILL)
    ((first, load),) = await server.look()
    ((again, _),) = await server.look()
    assert first == again and len(engine.probes) == 1
    assert (first.engine, first.model, first.max_context_tokens) == (EngineKind.VLLM, "m", 1024)
    kv = first.kv
    assert (kv.engine_id, kv.side_channel_host, kv.side_channel_port) == (
        engine.engine_id,
        "127.0.0.1",
        engine.side_port,
    )
    assert (kv.modes, kv.tp_size, kv.tokens_per_block, kv.layout, kv.takes_back) == ((Mode.PUSH,), 1, 128, None, False)
    assert kv.compat_hash == "vllm 0.33.0 /models/m auto"
    assert (load.running_seqs, load.free_blocks) == (3, 48)
    (probe,) = engine.probes
    assert (probe.body["max_tokens"], probe.params["do_remote_decode"]) == (1, True)


async def test_an_identity_that_is_given_costs_no_probe(engine, looking):
    given = Identity("e", "h", 5600, tp_size=2, mode=Mode.PUSH, block_tokens=64)
    server = looking(Role.PREFILL, identity=(given,), compat="c", model="n", name="p0")
    ((instance, _),) = await server.look()
    kv = instance.kv
    assert not engine.probes
    assert (instance.instance_id, instance.model, instance.aliases) == ("p0", "n", ("m",))
    assert (kv.engine_id, kv.tp_size, kv.tokens_per_block, kv.compat_hash) == ("e", 2, 64, "c")


async def test_decode_is_never_probed_and_takes_either_mode(engine, looking):
    ((instance, _),) = await looking(Role.DECODE).look()
    assert not engine.probes
    assert (instance.kv.modes, instance.kv.tp_size, instance.kv.engine_id) == ((Mode.PUSH, Mode.PULL), 0, "")


async def test_one_that_does_both_hands_nothing_over(engine, looking):
    ((instance, _),) = await looking(Role.BOTH).look()
    assert instance.kv is None and not engine.probes


async def test_another_start_is_another_epoch(engine, looking):
    server = looking(Role.PREFILL)
    ((before, _),) = await server.look()
    engine._begin()
    ((after, _),) = await server.look()
    assert (after.kv.engine_id, after.epoch > before.epoch, len(engine.probes)) == (engine.engine_id, True, 2)


async def test_silence_without_a_start_time_is_doubt(engine, looking):
    engine.tells_start = False
    server = looking(Role.PREFILL)
    await server.look()
    await server.look()
    assert len(engine.probes) == 1
    await engine.stop()
    with pytest.raises(LegUnreachable):
        await server.look()
    await engine.start(int(engine.url.rpartition(":")[2]))
    ((after, _),) = await server.look()
    assert after.kv.engine_id == engine.engine_id and len(engine.probes) == 2


async def test_an_answer_from_another_start_is_believed(engine, looking):
    server = looking(Role.PREFILL)
    ((before, _),) = await server.look()
    answer = (
        b'{"kv_transfer_params":{"remote_engine_id":"new","remote_host":"h","remote_port":1,"tp_size":1,'
        b'"transfer_mode":"push"}}'
    )
    assert server.relearn(before, answer) is True
    ((after, _),) = server.found
    assert (after.kv.engine_id, after.epoch > before.epoch) == ("new", True)
    assert server.relearn(after, answer) is False, "it is known by now"
    assert server.relearn(after, b"{}") is False


async def test_ranks_that_look_alike_prefill_for_nobody(engine, looking, monkeypatch, caplog):
    """A server that ignores the header would push for a rank that decode has not registered with."""
    engine.dp_size = 2
    monkeypatch.setattr(Engine, "rank_id", lambda self, rank: self.engine_id)
    found = await looking(Role.PREFILL).look()
    assert [instance.kv for instance, _ in found] == [None, None]
    assert "ignores X-data-parallel-rank" in caplog.text


async def test_an_engine_without_a_hand_over_is_not_probed_all_the_time(engine, looking, monkeypatch):
    engine.has_connector = False
    server = looking(Role.PREFILL)
    for _ in range(3):
        await server.look()
    assert len(engine.probes) == 1
    engine.has_connector = True
    monkeypatch.setattr(server, "_probe_at", 0.0)
    ((instance, _),) = await server.look()
    assert instance.kv is not None


async def test_adapters_come_and_go(engine, looking, monkeypatch):
    server = looking(Role.PREFILL)
    await server.look()
    engine.loras = ("fr",)
    ((instance, _),) = await server.look()
    assert instance.aliases == (), "not asked again so soon"
    monkeypatch.setattr(module, "NAMES_S", 0.0)
    ((instance, _),) = await server.look()
    assert instance.aliases == ("fr",) and len(engine.probes) == 1


async def test_an_engine_that_is_not_well_or_serves_nothing_is_nobody(engine, looking):
    engine.healthy = False
    server = looking(Role.PREFILL)
    assert await server.look() == ()
    engine.healthy, engine.names = True, ()
    assert await server.look() == () and not engine.probes


async def test_endpoints_are_those_of_its_document(engine, looking):
    engine.paths = ("/v1/embeddings", "/sleep", "/tokenize", "/v1/chat/completions")
    ((instance, _),) = await looking(Role.DECODE).look()
    assert instance.endpoints == ("/tokenize", "/v1/chat/completions", "/v1/embeddings")
