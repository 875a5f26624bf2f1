"""The official Python client: models, chat and text, streamed and not, usage, errors, both ways of calling."""

import asyncio
import sys

import openai

url, model = sys.argv[1:3]
MESSAGES = [{"role": "user", "content": "Say something."}]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)

assert [one.id for one in client.models.list()] == [model]
assert client.models.retrieve(model).id == model
wish = {"model": model, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
whole = client.chat.completions.create(**wish)
assert whole.usage.completion_tokens > 0 and whole.choices[0].finish_reason in ("stop", "length")
events = list(client.chat.completions.create(**wish, stream=True, stream_options={"include_usage": True}))
assert "".join(e.choices[0].delta.content or "" for e in events if e.choices) == whole.choices[0].message.content
assert events[-1].usage.completion_tokens == whole.usage.completion_tokens and events[-1].choices == []
with client.chat.completions.stream(**wish) as stream:
    text = "".join(event.delta for event in stream if event.type == "content.delta")
    assert text == whole.choices[0].message.content
text = client.completions.create(model=model, prompt=["One", "Two"], max_tokens=4, temperature=0)
assert [choice.index for choice in text.choices] == [0, 1]
raw = client.chat.completions.with_raw_response.create(**wish, extra_headers={"X-Request-Id": "mine"})
assert raw.headers["x-request-id"] == "mine"
for kind, changes in ((openai.NotFoundError, {"model": "nobody"}), (openai.BadRequestError, {"max_tokens": -1})):
    try:
        client.chat.completions.create(**wish | changes)
    except kind as error:
        assert error.request_id and error.code
    else:
        raise AssertionError(f"{changes} was served")


async def many() -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as several:
        answers = await asyncio.gather(*(several.chat.completions.create(**wish) for _ in range(16)))
    assert {answer.choices[0].message.content for answer in answers} == {whole.choices[0].message.content}


asyncio.run(many())
print("version", openai.__version__)
