"""A scripted OpenAI-compatible server for tests of clients: one event per output token, any failure on request."""

import asyncio
import contextlib
import json

WORD = " word"


class OpenAIStandIn:
    """Answers chat and completions with `max_tokens` words; `script` changes how. Use as an async context manager."""

    def __init__(self, *, token_s=0.0, first_s=0.0, tokenizes=True, script=None):
        self.token_s, self.first_s, self.tokenizes, self.script = token_s, first_s, tokenizes, script
        self.requests = []
        self.in_flight = self.most_in_flight = self.connections = 0

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._writers = set()
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader, writer):
        self.connections += 1
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                await self._answer(writer, method, path, fields, json.loads(body) if body else None)
                await writer.drain()
        writer.close()

    async def _answer(self, writer, method, path, fields, asked):
        if path == "/v1/models":
            return self.whole(writer, {"data": [{"id": "stand-in"}]})
        if path == "/tokenize" and self.tokenizes:
            chat = "messages" in asked
            text = asked["messages"][0]["content"] if chat else asked["prompt"]
            return self.whole(writer, {"count": len(text.split()) + (7 if chat else 0)})
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return self.whole(writer, {"error": {"code": "not_found"}}, "404 Not Found")
        self.requests.append((path, fields, asked))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            await (self.script or OpenAIStandIn.proper)(self, writer, asked)
        finally:
            self.in_flight -= 1

    async def proper(self, writer, asked):
        """A whole answer, streamed or not."""
        count = asked["max_tokens"]
        prompt = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
        usage = {"prompt_tokens": len(prompt.split()) + (7 if "messages" in asked else 0), "completion_tokens": count}
        await asyncio.sleep(self.first_s)
        if not asked.get("stream"):
            text = {"message": {"content": WORD * count}} if "messages" in asked else {"text": WORD * count}
            return self.whole(writer, {"choices": [text], "usage": usage})
        self.begin(writer)
        if "messages" in asked:
            self.event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        for index in range(count):
            await asyncio.sleep(self.token_s if index else 0)
            delta = {"delta": {"content": WORD}} if "messages" in asked else {"text": WORD}
            self.event(writer, {"choices": [delta]})
        self.event(writer, {"choices": [], "usage": usage})
        self.piece(writer, b"data: [DONE]\n\n")
        self.piece(writer, b"")
        return None

    @staticmethod
    def whole(writer, answer, status="200 OK"):
        """Write a JSON answer."""
        body = json.dumps(answer).encode()
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    @staticmethod
    def begin(writer):
        """Write the head of a stream."""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    @staticmethod
    def piece(writer, data):
        """Write one chunk; an empty one ends the body."""
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, writer, payload):
        """Write one server-sent event."""
        self.piece(writer, b"data: " + json.dumps(payload).encode() + b"\n\n")
