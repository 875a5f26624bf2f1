"""What only some engines can do: served by one of them, or refused before anything is sent."""

import pytest
import pytest_asyncio

from router.bench.mock_behaviour import Fault
from router.core.abilities import PARAMS
from router.core.intake import SPLIT, Endpoint
from tests.support.routers import BODY, PATH, rig

pytestmark = pytest.mark.asyncio(loop_scope="module")

WHOLE = [
    ({"n": 3}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"prompt_logprobs": 2}, "prompt_logprobs"),
    ({"echo": True, "logprobs": 1}, "echo"),
    ({"prompt": ["a", "b"]}, "prompt"),
]
OTHERS = sorted(set(Endpoint) - SPLIT)
RESPONSE_EVENTS = (
    b'{"type":"response.created"}\n\nevent: response.output_text.delta\ndata: {"delta":"a"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed"}}'
)
MESSAGE_EVENTS = b'{"type":"message_start"}\n\nevent: message_stop\ndata: {"type":"message_stop"}'


def prepare(engine):
    """d0 can do nothing special; d1 has every endpoint, and all options but one."""
    if engine.name == "d0":
        engine.endpoints, engine.lacks = (), tuple(PARAMS)
    if engine.name == "d1":
        engine.endpoints, engine.lacks = tuple(OTHERS), ("best_of",)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["hook", "asgi"])
async def site(request):
    async with rig(num_decode=2, prepare=prepare, data_path=request.param, attempts=1) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def r(site):
    for engine in site.engines:
        engine.seen.clear()
        site.behave(engine)
    yield site
    await site.come_to_rest()


@pytest.mark.parametrize(("fields", "param"), WHOLE, ids=[param for _, param in WHOLE])
async def test_a14_a16_an_option_goes_to_an_engine_that_has_it_or_is_refused(r, fields, param):
    for _ in range(4):
        answer = await r.client.post(PATH, json=BODY | fields)
        if param == "best_of":
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "best_of")
        else:
            assert answer.status_code == 200
    able, unable = r.decodes[1], r.decodes[0]
    assert not r.prefill.seen and not unable.seen
    assert len(able.seen) == (0 if param == "best_of" else 4)
    assert all(seen.fields == BODY | fields for seen in able.seen)


@pytest.mark.parametrize("path", OTHERS)
async def test_other_endpoints_are_passed_to_engines_that_have_them(r, path):
    asked = {"model": "m", "input": "hi", "x": [1, None]}
    answer = await r.client.post(path, json=asked)
    assert (answer.status_code, answer.content) == (200, r.decode.behaviour.answer)
    (seen,) = r.decodes[1].seen
    assert (seen.path, seen.fields, seen.handoff) == (path, asked, None)
    assert not r.prefill.seen and not r.decodes[0].seen
    assert (await r.client.get(path)).status_code == 405


async def test_tokenizers_need_no_model_where_there_is_one(r):
    assert (await r.client.post("/tokenize", json={"prompt": "hi"})).status_code == 200
    assert (await r.client.post("/v1/embeddings", json={"input": "hi"})).json()["error"]["param"] == "model"
    assert (await r.client.post("/tokenize", json={"model": "x", "prompt": "hi"})).status_code == 404


@pytest.mark.parametrize(
    ("path", "events", "good"),
    [
        ("/v1/responses", RESPONSE_EVENTS, True),
        ("/v1/messages", MESSAGE_EVENTS, True),
        ("/v1/responses", b'{"type":"response.created"}', False),
        ("/v1/messages", b'{"type":"message_start"}', False),
    ],
)
async def test_streams_of_other_endpoints_end_in_their_own_way(r, path, events, good):
    r.behave(r.decodes[1], event=events, num_events=1, fault=Fault.NO_END, fault_after=1)
    answer = await r.client.post(path, json={"model": "m", "stream": True})
    if good:
        assert (answer.status_code, answer.content) == (200, b"data: %b\n\n" % events)
    else:
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "leg_broken")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_is_gone_on_from_where_it_is_held_or_refused(stream):
    async with rig(num_decode=3, prepare=lambda engine: setattr(engine, "endpoints", ("/v1/responses",))) as r:
        for engine in r.decodes:
            r.behave(
                engine,
                answer=b'{"id":"resp_%b"}' % engine.name.encode(),
                event=RESPONSE_EVENTS.replace(
                    b"created", b'created","response":{"id":"resp_%b"},"x":"' % engine.name.encode(), 1
                ),
                num_events=1,
            )
        asked = {"model": "m", "input": "hi", "stream": stream}
        refused = await r.client.post("/v1/responses", json=asked | {"previous_response_id": "resp_d1"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "previous_response_id")
        assert not any(engine.seen for engine in r.engines)
        while not r.decodes[1].seen:
            await r.client.post("/v1/responses", json=asked)
        before = [len(engine.seen) for engine in r.decodes]
        for _ in range(6):
            answer = await r.client.post("/v1/responses", json=asked | {"previous_response_id": "resp_d1"})
            assert answer.status_code == 200
        assert [len(engine.seen) for engine in r.decodes] == [before[0], before[1] + 6, before[2]]
        assert not r.prefill.seen


async def test_an_endpoint_that_nobody_has_is_404_and_reaches_nobody():
    async with rig(prepare=lambda engine: setattr(engine, "endpoints", ())) as r:
        answer = await r.client.post("/v1/embeddings", json={"model": "m", "input": "hi"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert not r.decode.seen
