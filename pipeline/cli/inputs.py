"""Read the input of a command while it arrives: lines, pieces of bytes, or JSON documents over several lines."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import IO

import click

from reknit.pipeline.cli import stdin
from reknit.topics.headers import Framing

# Most bytes of a stream in one record.
_PIECE = 1 << 16
# A JSON string, which has no line break; brackets in it open nothing.
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


async def documents(file: str) -> AsyncIterator[tuple[int, bytes]]:
    """Yield documents, each with the number of its first line; a document ends with the line that closes it."""
    begun, depth, number = 0, 0, 0
    lines: list[bytes] = []
    async for line in pieces(file, "events"):
        number += 1
        begun = begun if lines else number
        lines.append(line)
        bare = _STRING.sub(b"", line)
        depth += bare.count(b"{") + bare.count(b"[") - bare.count(b"}") - bare.count(b"]")
        if depth <= 0:
            yield begun, b"".join(lines)
            depth, lines = 0, []
    if lines:
        yield begun, b"".join(lines)


async def pieces(file: str, framing: Framing) -> AsyncIterator[bytes]:
    """Yield lines, or pieces of bytes; reading in a thread lets records be sent while the next piece is awaited."""
    with stdin() if file == "-" else click.open_file(file, "rb") as opened:
        while piece := await asyncio.to_thread(_piece, opened, framing):
            yield piece


def _piece(opened: IO[bytes], framing: Framing) -> bytes:
    if framing == "events":
        return opened.readline()
    piece: bytes = opened.read1(_PIECE)  # type: ignore[attr-defined] # what is opened here is buffered
    return piece
