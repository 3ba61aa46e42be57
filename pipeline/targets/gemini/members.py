"""Gemini's parts that the canonical form has no block for: which may go back, and only if well-formed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct

from pipeline.model import Unknown
from pipeline.targets.media import decodes

_Words = Annotated[str, Meta(pattern=r"\S")]


class _Exact(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Takes no key that it does not name."""


class _Data(_Exact, frozen=True):
    mime_type: _Words
    data: _Words
    display_name: str = ""


class _File(_Exact, frozen=True):
    file_uri: _Words
    mime_type: str = ""
    display_name: str = ""


class _Code(_Exact, frozen=True):
    language: _Words
    code: str
    id: str = ""


class _Outcome(_Exact, frozen=True):
    outcome: _Words
    output: str = ""
    id: str = ""


class _ServerCall(_Exact, frozen=True):
    tool_type: _Words
    id: str = ""
    args: dict[str, Any] = {}
    response: dict[str, Any] = {}


_MEMBERS: Final[Mapping[str, type[Struct]]] = MappingProxyType(
    {
        "inlineData": _Data,
        "fileData": _File,
        "executableCode": _Code,
        "codeExecutionResult": _Outcome,
        "toolCall": _ServerCall,
        "toolResponse": _ServerCall,
    }
)
# What may stand beside a part's member.
_BESIDE: Final[Mapping[str, type]] = MappingProxyType(
    {"thoughtSignature": str, "thought": bool, "videoMetadata": dict[str, Any], "mediaResolution": dict[str, Any]}
)


def own_part(block: Unknown) -> bool:
    """Whether a block is a well-formed part of Gemini's, as the API wrote it or would."""
    shape = _MEMBERS.get(block.kind)
    if shape is None:
        return False
    try:
        keys = part_of(block)
        member = msgspec.json.decode(keys.pop(block.kind, b""), type=shape)
        for key, value in keys.items():
            msgspec.json.decode(value, type=_BESIDE[key])
    except (msgspec.DecodeError, KeyError):
        return False
    return not isinstance(member, _Data) or decodes(member.data)


def part_of(block: Unknown) -> dict[str, Raw]:
    """The part that a block stands for, without the type that a block of the log has."""
    part = msgspec.json.decode(block.raw, type=dict[str, Raw])
    part.pop("type", None)
    return part
