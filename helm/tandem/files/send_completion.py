"""`helm test`: a completion comes back through the routers. Tries until TIMEOUT_S, since engines may still load."""

import json
import os
import ssl
import sys
import time
import urllib.request

URL, MODEL, KEY = os.environ["URL"], os.environ.get("MODEL", ""), os.environ.get("API_KEY", "")


def ask(path: str, body: dict[str, object] | None = None) -> dict[str, object]:
    """The router's JSON answer. Raises OSError for a status that is not good."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})
    request = urllib.request.Request(URL + path, json.dumps(body).encode() if body else None, headers)
    # The certificate is for the name by which clients call, which is not the Service's.
    context = ssl._create_unverified_context() if URL.startswith("https") else None
    with urllib.request.urlopen(request, timeout=60, context=context) as answer:
        return json.load(answer)


ends, said = time.monotonic() + float(os.environ.get("TIMEOUT_S", "300")), ""
while time.monotonic() < ends:
    try:
        model = MODEL or ask("/v1/models")["data"][0]["id"]
        answer = ask("/v1/completions", {"model": model, "prompt": "The capital of France is", "max_tokens": 8})
        if answer["usage"]["completion_tokens"] > 0:
            print(f"{model} answers {answer['choices'][0]['text']!r}")
            sys.exit(0)
        said = f"{model} answered without a token: {answer}"
    except (OSError, LookupError) as error:
        body = error.read().decode(errors="replace") if hasattr(error, "read") else ""
        said = f"{error} {body}".strip()
    time.sleep(2)
sys.exit(
    f"No completion came through {URL}: {said or 'nobody was asked'}. Look at `kubectl get pods` and the routers' logs."
)
