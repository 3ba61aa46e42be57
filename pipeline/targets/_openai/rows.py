"""A chat's messages on the wire."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.model import Text


def call(call_id: str, name: str, arguments: Raw) -> dict[str, Any]:
    """A call of a function; its arguments are the JSON text of an object."""
    function = {"name": name, "arguments": bytes(arguments).decode().strip()}
    return {"type": "function", "id": call_id, "function": function}


def custom_call(call_id: str, name: str, given: Raw) -> dict[str, Any]:
    """A call of a tool that takes free text."""
    return {"type": "custom", "id": call_id, "custom": {"name": name, **msgspec.json.decode(given)}}


class _Text(Struct, frozen=True, tag_field="type", tag="text"):
    text: str


class _Url(Struct, frozen=True):
    url: str
    detail: Raw | UnsetType = UNSET


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

    def text(self, text: Text) -> Any:  # noqa: ANN401  a part, ready to encode
        return _Text(text.text)

    def image(self, url: str, detail: Raw | UnsetType = UNSET) -> Any:  # noqa: ANN401  a part
        return _Image(_Url(url, detail))

    def uploaded_image(self, file_id: str, detail: Raw | UnsetType = UNSET) -> Any:  # noqa: ANN401, ARG002  there are no uploads
        return None

    def takes(self, media_type: str) -> bool:
        """Only PDF, where there are documents at all."""
        return media_type == "application/pdf"

    def file(self, name: str, url: str) -> Any:  # noqa: ANN401, ARG002  no such part
        return None

    def uploaded_file(self, file_id: str) -> Any:  # noqa: ANN401, ARG002  no such part
        return None

    def linked_file(self, url: str) -> Any:  # noqa: ANN401, ARG002  no such part
        return None


class ChatParts(ServedParts):
    def file(self, name: str, url: str) -> Any:  # noqa: ANN401  a part
        return _File(_FileData(filename=name, file_data=url))

    def uploaded_file(self, file_id: str) -> Any:  # noqa: ANN401  a part
        return _File(_FileData(file_id=file_id))


encode = msgspec.json.Encoder().encode
