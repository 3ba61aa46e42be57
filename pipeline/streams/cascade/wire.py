"""Events of a planner that speaks text only, as typed structs: one decode an event.

They come one a line or in SSE. What WindsurfAPI hands on as it polls has no type, ``{"text", "thinking", "isError"}``,
and is read as it is; the others say what they are:

- ``{"type": "message_start", "id"?, "model"?}``: an attempt begins. Without one it begins with its first words.
- ``{"type": "text_delta", "text"}``, ``{"type": "thinking_delta", "thinking"}`` (or ``text``): more of either.
- ``{"type": "done", "reason"?, "usage"?}``: the answer is over. A reason that says that the planner was given up, such
  as ``max_wait``, breaks the run off.
- ``{"type": "max_wait", "message"?}``: the planner was given up on after the longest time that it may take.
- ``{"type": "error", "message", "code"?}``: the attempt failed.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from pipeline.streams.fields import Counted
from topics.items import Usage


class Chunk(Struct, gc=False):
    """A piece as the source has it. ``is_error``: the text is why the attempt failed, not the model's."""

    text: str | None = ""
    thinking: str | None = ""
    is_error: bool = msgspec.field(default=False, name="isError")


class Started(Struct, tag="message_start", gc=False):
    id: str | None = None
    model: str | None = None


class TextDelta(Struct, tag="text_delta", gc=False):
    text: str


class ThinkingDelta(Struct, tag="thinking_delta", gc=False):
    thinking: str = ""
    text: str = ""


class Tokens(Counted, gc=False):
    """Token counts by the source's names, or by those of items."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    input: int | None = msgspec.field(default=None, name="inputTokens")
    output: int | None = msgspec.field(default=None, name="outputTokens")
    cache_read: int | None = msgspec.field(default=None, name="cacheReadTokens")
    cache_write: int | None = msgspec.field(default=None, name="cacheWriteTokens")


class Done(Struct, tag="done", gc=False):
    reason: str | None = None
    usage: Tokens | None = None


class MaxWait(Struct, tag="max_wait", gc=False):
    """The planner took too long and was given up."""

    message: str = ""


Typed: TypeAlias = TextDelta | ThinkingDelta | Started | Done | MaxWait
Event: TypeAlias = Typed | Chunk

_typed: msgspec.json.Decoder[Typed] = msgspec.json.Decoder(Typed)


class _Untyped(Chunk, forbid_unknown_fields=True, gc=False):
    """A piece that has no members but its own: anything else may be another kind of event."""


_untyped = msgspec.json.Decoder(_Untyped)


def read_event(payload: bytes) -> Event:
    """One event.

    Raises:
        msgspec.DecodeError: it is none of these.
    """
    try:
        return _typed.decode(payload)
    except msgspec.ValidationError:
        return _untyped.decode(payload)


def usage(tokens: Tokens) -> Usage:
    return Usage(
        input_tokens=tokens.input_tokens or tokens.input or 0,
        output_tokens=tokens.output_tokens or tokens.output or 0,
        cache_creation_input_tokens=tokens.cache_creation_input_tokens or tokens.cache_write or 0,
        cache_read_input_tokens=tokens.cache_read_input_tokens or tokens.cache_read or 0,
    )
