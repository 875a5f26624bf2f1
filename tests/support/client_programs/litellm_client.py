"""LiteLLM as a client: chat and text, streamed and not, its own exceptions."""

import sys
from importlib.metadata import version

import litellm

url, model = sys.argv[1:3]
place = {"api_base": f"{url}/v1", "api_key": "any", "num_retries": 0}
wish = {
    "model": f"openai/{model}",
    "messages": [{"role": "user", "content": "Say something."}],
    "max_tokens": 8,
    "temperature": 0,
}
whole = litellm.completion(**wish, **place)
assert whole.usage.completion_tokens > 0
pieces = list(litellm.completion(**wish, **place, stream=True, stream_options={"include_usage": True}))
assert (
    "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    == whole.choices[0].message.content
)
text = litellm.text_completion(model=f"text-completion-openai/{model}", prompt="One", max_tokens=4, **place)
assert text.choices[0].text
try:
    litellm.completion(**wish | {"model": "openai/nobody"}, **place)
except litellm.NotFoundError:
    pass
else:
    raise AssertionError("an unknown model was served")
print("version", version("litellm"))
