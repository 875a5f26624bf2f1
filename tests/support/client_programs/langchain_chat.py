"""LangChain's chat model for OpenAI: called, streamed, batched, awaited, with tools bound."""

import asyncio
import sys
from importlib.metadata import version

from langchain_openai import ChatOpenAI

url, model = sys.argv[1:3]
chat = ChatOpenAI(base_url=f"{url}/v1", api_key="any", model=model, max_tokens=8, temperature=0, max_retries=0)
whole = chat.invoke("Say something.")
assert whole.content and whole.usage_metadata["output_tokens"] > 0
pieces = list(chat.stream("Say something.", stream_usage=True))
assert "".join(piece.content for piece in pieces) == whole.content
assert sum(piece.usage_metadata["output_tokens"] for piece in pieces if piece.usage_metadata) > 0
assert [one.content for one in chat.batch(["Say something."] * 4)] == [whole.content] * 4
assert asyncio.run(chat.ainvoke("Say something.")).content == whole.content


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


assert chat.bind_tools([add]).invoke("Add one and two.").id
print("version", version("langchain-openai"))
