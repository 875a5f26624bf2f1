"""A headless Chromium, driven over two pipes by the DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-extensions",
)


def find_browser() -> str | None:
    """Where one is installed."""
    return next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)


class Page:
    """One page, and what went wrong on it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._session: str | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._last = 0
        self.complaints: list[str] = []
        """Uncaught errors, console errors and violations of the page's security policy."""

    async def begin(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            await self.call(f"{domain}.enable")

    async def call(self, method: str, **params: object) -> Any:
        self._last += 1
        number, message = self._last, {"id": self._last, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._answers[number] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(message).encode() + b"\0")
        return await self._answers[number]

    async def goto(self, url: str) -> None:
        """The page is loaded, its scripts have begun."""
        await self.call("Page.navigate", url=url)
        await self.until("location.protocol === 'http:' && document.readyState === 'complete'")

    async def look(self, script: str) -> Any:
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, script: str, within_s: float = 20.0) -> Any:
        """The expression's value once it is truthy."""
        async with asyncio.timeout(within_s):
            while not (value := await self.look(script)):
                await asyncio.sleep(0.02)
        return value

    async def prefer(self, scheme: str) -> None:
        """The reader prefers `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def photograph(self, path: Path, width: int = 1280, height: int = 1400) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        path.write_bytes(base64.b64decode((await self.call("Page.captureScreenshot"))["data"]))

    async def listen(self) -> None:
        while True:
            try:
                raw = await self._reader.readuntil(b"\0")
            except asyncio.IncompleteReadError:
                return
            message = json.loads(raw[:-1])
            if "id" in message:
                waiting = self._answers.pop(message["id"])
                if "error" in message:
                    waiting.set_exception(RuntimeError(message["error"]["message"]))
                else:
                    waiting.set_result(message["result"])
            elif message["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(message["params"]["exceptionDetails"]))
            elif message["method"] == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.complaints.append(message["params"]["entry"]["text"])


def _take_places(reads: int, writes: int) -> None:
    """In the child: these are its descriptors 3 and 4, where the browser looks for its pipes."""
    reads, writes = fcntl.fcntl(reads, fcntl.F_DUPFD, 10), fcntl.fcntl(writes, fcntl.F_DUPFD, 10)
    os.dup2(reads, 3)
    os.dup2(writes, 4)


@asynccontextmanager
async def browsing() -> AsyncIterator[Page]:
    """A fresh page; its browser has ended afterwards."""
    path = find_browser()
    assert path is not None
    child_reads, we_write = os.pipe()
    we_read, child_writes = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(path, *FLAGS, f"--user-data-dir={profile}"),
            preexec_fn=lambda: _take_places(child_reads, child_writes),
            pass_fds=(3, 4),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        os.close(child_reads)
        os.close(child_writes)
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=64 * 1024 * 1024)
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(we_read, "rb", buffering=0)
        )
        writing, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(we_write, "wb", buffering=0)
        )
        page = Page(reader, asyncio.StreamWriter(writing, protocol, None, loop))
        listening = asyncio.create_task(page.listen())
        try:
            await page.begin()
            yield page
        finally:
            process.kill()
            await process.wait()
            listening.cancel()
            writing.close()
            reading.close()
