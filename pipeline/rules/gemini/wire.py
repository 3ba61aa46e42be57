"""The Gemini API on the wire: what a content and each kind of part may hold.

Fields are those of the API's own schema (v1beta and Vertex). A protobuf reads null as absent and takes both spellings
of a name; structs know the one in camel case, and ``rename`` changes the other before it reads again.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType


class Anything(Struct, frozen=True, gc=False):
    """Any JSON object; its keys are skipped."""


class Blob(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    mimeType: str | None = None
    data: str | None = None
    displayName: str | None = None


class FileData(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Media by reference."""

    mimeType: str | None = None
    fileUri: str | None = None
    displayName: str | None = None


class FunctionCall(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    name: str | None = None
    args: Anything | None = None
    id: str | None = None
    partialArgs: Raw | UnsetType = UNSET
    willContinue: Raw | UnsetType = UNSET


class ResponsePart(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Media in a function's answer."""

    inlineData: Blob | None = None
    fileData: FileData | None = None


class FunctionResponse(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The answer to a call; the two are matched by order and count, the id is a hint."""

    name: str | None = None
    response: Anything | None = None
    id: str | None = None
    parts: list[ResponsePart] | None = None
    scheduling: Raw | UnsetType = UNSET
    willContinue: Raw | UnsetType = UNSET


class Part(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One part: one of the data fields (``DATA``), and what goes with it."""

    text: str | None = None
    functionCall: FunctionCall | None = None
    functionResponse: FunctionResponse | None = None
    thoughtSignature: str | None = None
    thought: bool | None = None
    inlineData: Blob | None = None
    fileData: FileData | None = None
    executableCode: Anything | None = None
    codeExecutionResult: Anything | None = None
    toolCall: Anything | None = None
    toolResponse: Anything | None = None
    videoMetadata: Anything | None = None
    partMetadata: Anything | None = None
    mediaResolution: Raw | UnsetType = UNSET


class Content(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One turn. An absent role is the user's."""

    role: str | None = None
    parts: list[Part] | None = None


_NUMBER = re.compile(r"\.(\d+)")

DATA = (
    "text", "functionCall", "functionResponse", "inlineData", "fileData", "executableCode", "codeExecutionResult",
    "toolCall", "toolResponse",
)  # fmt: skip
_STRUCTS = (Content, Part, Blob, FileData, FunctionCall, FunctionResponse, ResponsePart)
# Free-form objects, whose keys are the caller's.
_FREE = frozenset(
    {
        "args", "response", "executableCode", "codeExecutionResult", "toolCall", "toolResponse", "videoMetadata",
        "partMetadata", "mediaResolution",
    }
)  # fmt: skip


def snake(name: str) -> str:
    """Spell a field's name as the schema, and the API's messages, do."""
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in name)


def place(path: str) -> str:
    """Write a path as the API does: ``contents.0.functionCall`` is ``contents[0].function_call``."""
    return snake(_NUMBER.sub(r"[\1]", path))


# The other spelling of each field.
_RENAMED = {snake(name): name for struct in _STRUCTS for name in struct.__struct_fields__ if snake(name) != name}


def rename(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Give the fields of a content their names in camel case; a part that stands alone becomes a list, as there."""
    if isinstance(value, list):
        return [rename(item) for item in value]
    if not isinstance(value, dict):
        return value
    named = {_RENAMED.get(name, name): inner for name, inner in value.items()}
    renamed = {name: inner if name in _FREE else rename(inner) for name, inner in named.items()}
    if isinstance(renamed.get("parts"), dict):
        renamed["parts"] = [renamed["parts"]]
    return renamed
