"""A chat's messages on the wire."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType


class System(Struct, frozen=True, tag_field="role", tag="system"):
    """The system prompt."""

    content: str


class User(Struct, frozen=True, tag_field="role", tag="user"):
    """What the user says."""

    content: str | list[Any]


class Assistant(Struct, frozen=True, tag_field="role", tag="assistant"):
    """What the assistant says and calls; without text its content is null."""

    content: str | list[Any] | None
    refusal: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[Any] | UnsetType = UNSET
    prefix: bool | UnsetType = UNSET


class Answer(Struct, frozen=True, tag_field="role", tag="tool"):
    """A tool's result."""

    tool_call_id: str
    content: str | list[Any]


class _Function(Struct, frozen=True):
    name: str
    arguments: str


class Call(Struct, frozen=True, tag_field="type", tag="function"):
    """A call; its arguments are the JSON text of an object."""

    id: str
    function: _Function


def call(call_id: str, name: str, arguments: Raw) -> Call:
    """A call of a function."""
    return Call(call_id, _Function(name, bytes(arguments).decode().strip()))


class _Text(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class _Url(Struct, frozen=True):
    url: str


class _Image(Struct, frozen=True, tag_field="type", tag="image_url"):
    image_url: _Url


class _FileData(Struct, frozen=True, omit_defaults=True):
    filename: str | UnsetType = UNSET
    file_data: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET


class _File(Struct, frozen=True, tag_field="type", tag="file"):
    file: _FileData


class ServedParts:
    """The parts that servers of open models take: text and images."""

    def text(self, text: str) -> Any:  # noqa: ANN401  a part, ready to encode
        """Plain text."""
        return _Text(text)

    def image(self, url: str) -> Any:  # noqa: ANN401  a part
        """An image by its URL, or as a data URL."""
        return _Image(_Url(url))

    def uploaded_image(self, file_id: str) -> Any:  # noqa: ANN401, ARG002  there are no uploads
        """Nothing: images are not uploaded."""
        return None

    def file(self, name: str, url: str) -> Any:  # noqa: ANN401, ARG002  no such part
        """Nothing: documents are not taken."""
        return None

    def uploaded_file(self, file_id: str) -> Any:  # noqa: ANN401, ARG002  no such part
        """Nothing: documents are not taken."""
        return None

    def linked_file(self, url: str) -> Any:  # noqa: ANN401, ARG002  no such part
        """Nothing: documents are not taken."""
        return None


class ChatParts(ServedParts):
    """The parts that Chat Completions takes: documents too, unless they lie elsewhere."""

    def file(self, name: str, url: str) -> Any:  # noqa: ANN401  a part
        """A document as a data URL."""
        return _File(_FileData(filename=name, file_data=url))

    def uploaded_file(self, file_id: str) -> Any:  # noqa: ANN401  a part
        """A document that was uploaded before."""
        return _File(_FileData(file_id=file_id))


encode = msgspec.json.Encoder().encode
