from __future__ import annotations

import asyncio

import pytest

from engine_shim.serve import http_body
from engine_shim.serve.http_body import ClientGone, headers_of, read_body
from router.contract.errors import BodyTooLarge, RequestTimeout


def receiver(*messages):
    left = list(messages)

    async def receive():
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return receive


def piece(body, more):
    return {"type": "http.request", "body": body, "more_body": more}


def scope(**headers):
    return {"headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]}


def test_headers_are_found_in_lower_case_and_the_last_one_counts():
    assert headers_of({"headers": [(b"X-A", b"1"), (b"x-a", b"2"), (b"x-b", b"\xe9")]}) == {"x-a": "2", "x-b": "é"}


async def test_pieces_are_joined():
    assert await read_body(scope(), receiver(piece(b"ab", True), piece(b"c", False)), 3) == b"abc"


async def test_a_body_that_is_declared_too_large_is_not_read():
    with pytest.raises(BodyTooLarge, match="over 3 bytes"):
        await read_body(scope(content_length="4"), receiver(), 3)


async def test_a_body_that_grows_too_large_is_read_no_further():
    with pytest.raises(BodyTooLarge):
        await read_body(scope(), receiver(piece(b"ab", True), piece(b"cd", True)), 3)


async def test_a_client_that_leaves_meanwhile_is_gone():
    with pytest.raises(ClientGone):
        await read_body(scope(), receiver(piece(b"ab", True), {"type": "http.disconnect"}), 3)


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(http_body, "BODY_FOR_S", 0.001)
    with pytest.raises(RequestTimeout):
        await read_body(scope(), receiver(piece(b"ab", True)), 3)
