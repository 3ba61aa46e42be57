"""Converse on the wire: what a message and each kind of block may hold.

Fields are those of the service's own model. A block is a union: exactly one of its fields is set.
"""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType


class Anything(Struct, frozen=True, gc=False):
    """Any JSON object; its keys are skipped."""


class Source(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Where an image, a video or a sound is; bytes are base64."""

    bytes: str | None = None
    s3Location: Anything | None = None


class Media(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    format: str
    source: Source
    error: Raw | UnsetType = UNSET


class DocumentSource(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    bytes: str | None = None
    s3Location: Anything | None = None
    text: str | None = None
    content: list[Anything] | None = None


class Document(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A document; its name is unique in the request."""

    name: str
    source: DocumentSource
    format: str | None = None
    context: str | None = None
    citations: Raw | UnsetType = UNSET


class ToolUse(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A call; its type tells the service's own tools (``server_tool_use``) from the caller's."""

    toolUseId: str
    name: str
    input: Anything
    type: str | None = None


class InResult(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    text: str | None = None
    json: Anything | None = None
    image: Media | None = None
    document: Document | None = None
    video: Media | None = None
    searchResult: Anything | None = None


class ToolResult(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    toolUseId: str
    content: list[InResult]
    status: str | None = None
    type: str | None = None


class ReasoningText(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    text: str
    signature: str | None = None


class Reasoning(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    reasoningText: ReasoningText | None = None
    redactedContent: str | None = None


class Block(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    text: str | None = None
    toolUse: ToolUse | None = None
    toolResult: ToolResult | None = None
    reasoningContent: Reasoning | None = None
    image: Media | None = None
    document: Document | None = None
    video: Media | None = None
    audio: Media | None = None
    cachePoint: Anything | None = None
    guardContent: Anything | None = None
    citationsContent: Anything | None = None
    searchResult: Anything | None = None
    toolAddition: Anything | None = None
    toolRemoval: Anything | None = None


class Message(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    role: str
    content: list[Block]
