"""Many connections to ``reknit screens`` in one process, each a socket that is read as bytes arrive.

Each published piece of text has its number and the time at which it was sent, so that a connection shows which pieces
it got, in which order, and when.
"""

from __future__ import annotations

import asyncio
import re
import time

# A piece in a frame of any format: `delta` of AG-UI and the AI SDK, `content` of items.
_PIECE = re.compile(rb'"(?:delta|content)":"(\d+)@(\d+) ')


def piece(number):
    """The text of a piece that is sent now."""
    return f"{number}@{time.monotonic_ns()} "


class Member(asyncio.Protocol):
    """One connection.

    Attributes:
        numbers: of the pieces that it got as frames of their own.
        is_open: the status was 200, and the stream has begun.
        is_over: the connection has ended; ``is_clean`` if its answer ended with its last chunk.
    """

    def __init__(self, request, took=None):
        self._request = request
        self._took = took
        self._rest = b""
        self.status = b""
        self.numbers = []
        self.is_open = asyncio.Event()
        self.is_over = asyncio.Event()
        self.is_clean = False
        self.received = 0
        self.transport = None

    def connection_made(self, transport):
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data):
        now = time.monotonic_ns()
        self.received += len(data)
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        for frame in frames:
            if not self.is_open.is_set() and b": open" in frame:
                self.status = frame.split(b" ", 2)[1]
                self.is_open.set()
            found = _PIECE.search(frame)
            if found is not None:
                self.numbers.append(int(found[1]))
                if self._took is not None:
                    self._took.append((now - int(found[2])) / 1e6)

    def connection_lost(self, _error):
        self.is_clean = self._rest.endswith(b"0\r\n\r\n")
        self.is_over.set()


def request_for(path, headers):
    """The bytes of a request."""
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


async def joined(port, request, took=None):
    """Open one connection, and return it once its stream has begun."""
    loop = asyncio.get_running_loop()
    _, member = await loop.create_connection(lambda: Member(request, took), "127.0.0.1", port)
    opened, ended = (asyncio.create_task(each.wait()) for each in (member.is_open, member.is_over))
    await asyncio.wait([opened, ended], return_when=asyncio.FIRST_COMPLETED)
    for task in (opened, ended):
        task.cancel()
    assert member.status == b"200", "the server refused a connection"
    return member
