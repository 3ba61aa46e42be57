"""Writers of single messages that a repair has changed: in a framework's shape, or in that of a provider's API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from reknit.pipeline.history.pieces import Message, TrackedBlock
from reknit.pipeline.history.writers import writer_named
from reknit.pipeline.history.writers.base import Known
from reknit.pipeline.history.writers.kept import kept
from reknit.pipeline.history.writers.values import tool_names
from reknit.pipeline.model import Role, ToolResult, ToolUse, Turn
from reknit.pipeline.registry import target_named
from reknit.pipeline.targets import Setting

Said: TypeAlias = tuple[Role, TrackedBlock]
"""A block of a repaired history, with the role of its message."""

WritePieces: TypeAlias = Callable[[Role, Sequence[TrackedBlock], str | None, Sequence[Said]], list[dict[str, Any]]]
"""Writes the pieces of a role as messages; the first has the id, if there is one.

The last argument is the whole history, for the calls that results answer.
"""

_LIST: Final = msgspec.json.Decoder(list[dict[str, Any]])


def framework_writer(name: str) -> WritePieces:
    """Return the writer of a shape that ``convert`` writes."""
    writer = writer_named(name)

    def write(
        role: Role, pieces: Sequence[TrackedBlock], named: str | None, said: Sequence[Said]
    ) -> list[dict[str, Any]]:
        paths = tuple(piece.path or f"messages.0.content.{at}" for at, piece in enumerate(pieces))
        turn = Turn(role=role, blocks=tuple(piece.block for piece in pieces), index=0, id=named, paths=paths)
        turns, _ = kept([turn], writer.holds)
        calls = Turn(role="assistant", blocks=tuple(piece.block for _, piece in said), index=0)
        written = writer.write([turn for turn in turns if turn.blocks], Known(tool_names([calls])))
        return _LIST.decode(msgspec.json.encode(written))

    return write


def request_writer(target: str, model: str | None = None) -> WritePieces:
    """Return the writer of messages as they are in requests of a target."""
    dialect = target_named(target).writer.prepare(Setting(model=model), [])

    def write(
        role: Role,
        pieces: Sequence[TrackedBlock],
        named: str | None,  # noqa: ARG001  messages of requests have none
        said: Sequence[Said],
    ) -> list[dict[str, Any]]:
        state = dialect.state
        answered = {piece.block.tool_use_id for piece in pieces if isinstance(piece.block, ToolResult)}
        calls = [piece for _, piece in said if isinstance(piece.block, ToolUse) and piece.block.id in answered]
        if calls:
            # Some shapes name a result's function, which is in the call.
            state = dialect.encode(Message("assistant", calls), state).state
        return _LIST.decode(b"[%b]" % dialect.encode(Message(role, list(pieces)), state).data)

    return write
