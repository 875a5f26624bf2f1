"""A transport that keeps what is done to it."""

from __future__ import annotations


class KeptTransport:
    """Stands for an asyncio.Transport of a TCP connection."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False
        self.aborted = False
        self.paused = False
        self.unsent_bytes = 0

    def get_extra_info(self, name: str, default: object = None) -> object:
        return {"peername": ("127.0.0.1", 5), "sockname": ("127.0.0.1", 6)}.get(name, default)

    def write(self, data: bytes) -> None:
        assert not self.closed and not self.aborted, "written to after its end"
        self.written += data

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def set_write_buffer_limits(self, **limits: int) -> None:
        pass
