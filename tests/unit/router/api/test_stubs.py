import pytest
from fastapi import FastAPI

from router.api.stubs import _never, describe_inference
from router.contract.errors import Impossible


def test_inference_is_documented_with_its_fields():
    app = FastAPI()
    describe_inference(app)
    paths = app.openapi()["paths"]
    for path, prompt in (("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")):
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["required"] == ["model", prompt]
        assert schema["additionalProperties"] is True


async def test_a_post_that_gets_past_the_front_is_a_bug():
    class Request:
        class url:  # noqa: N801 - as Starlette names it
            path = "/v1/completions"

    with pytest.raises(Impossible):
        await _never(Request())
