"""Writers: canonical turns in, the messages of a framework out.

A writer is described once (`Writer`), with a table of what its shape has a place for. Everything else is left out
before it, with a fix.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from reknit.pipeline.errors import UnknownTargetError, expected_one_of
from reknit.pipeline.fixes import Fix, make
from reknit.pipeline.history.readers.shapes import read_message
from reknit.pipeline.history.writers import (
    ag_ui,
    ai_sdk_model,
    ai_sdk_ui,
    claude_code,
    codex,
    langchain,
    openai_agents,
    otel,
    pydantic_ai,
    strands,
)
from reknit.pipeline.history.writers.base import Known, Writer
from reknit.pipeline.history.writers.kept import kept
from reknit.pipeline.history.writers.values import tool_names
from reknit.pipeline.model import Conversation, Turn

WRITERS: Final[Mapping[str, Writer]] = MappingProxyType(
    {
        module.WRITER.name: module.WRITER
        for module in (
            langchain,
            pydantic_ai,
            ai_sdk_model,
            ai_sdk_ui,
            ag_ui,
            otel,
            openai_agents,
            strands,
            claude_code,
            codex,
        )
    }
)
"""The shapes that are written, by name."""
_encode: Final = msgspec.json.Encoder().encode
_line: Final = msgspec.json.Decoder(dict[str, Any])


class Written(Struct, frozen=True):
    """A history in a framework's shape: the JSON of its list of messages, and a fix for everything that is left out.

    ``lines``: the data is the lines of a program's file.
    """

    data: bytes
    fixes: tuple[Fix, ...]
    lines: bool = False


def messages_of(data: bytes, *, lines: bool) -> list[dict[str, Any]]:
    """Return what a writer wrote as Python objects."""
    if lines:
        return _line.decode_lines(data)
    return msgspec.json.decode(data, type=list[dict[str, Any]])


def writer_named(name: str) -> Writer:
    """Return the writer of a shape.

    Raises:
        UnknownTargetError: no shape of this name is written.
    """
    writer = WRITERS.get(name) or next((each for each in WRITERS.values() if each.alias == name), None)
    if writer is None:
        raise UnknownTargetError("unknown_target", expected_one_of(WRITERS, name))
    return writer


def write(conversation: Conversation, writer: Writer) -> Written:
    """Write a conversation. It is not repaired: what is broken in it stays broken."""
    turns = [*_system(conversation), *conversation.turns]
    messages, fixes = kept(turns, writer.holds, conversation.model)
    messages = [message for message in messages if message.blocks]
    written = writer.write(messages, Known(tool_names(turns), conversation.model))
    data = b"".join(_encode(each) + b"\n" for each in written) if writer.lines else _encode(written)
    return Written(data, (*fixes, *_setting(conversation)), writer.lines)


def _system(conversation: Conversation) -> list[Turn]:
    given = conversation.system
    if given is None or not given:
        return []
    turns, _ = read_message(msgspec.json.encode({"role": "system", "content": given}), index=0, source="anthropic")
    return [
        replace(
            turn, paths=tuple("system" if isinstance(given, str) else f"system.{at}" for at in range(len(turn.blocks)))
        )
        for turn in turns
    ]


def _setting(conversation: Conversation) -> list[Fix]:
    """The members of the document that a list of messages has no place for."""
    tools = [tool if tool.raw is UNSET else tool.raw for tool in conversation.tools]
    given = {"tools": tools, "params": conversation.params}
    return [make("field_dropped", name, before=value, detail=name) for name, value in given.items() if value]
