"""The items that are written, and their parts."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType


class User(Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the user's."""

    content: str | list[Any]
    role: str = "user"


class Assistant(Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the assistant's."""

    content: str | list[Any]
    role: str = "assistant"


class FunctionCall(Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call; its arguments are JSON text."""

    call_id: str
    name: str
    arguments: str


class FunctionOutput(Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """A call's result."""

    call_id: str
    output: str | list[Any]


class Reasoning(Struct, frozen=True, tag_field="type", tag="reasoning"):
    """Reasoning that only the provider can read, with the summary that it gave."""

    summary: list[Any]
    encrypted_content: str


class Summary(Struct, frozen=True, tag_field="type", tag="summary_text"):
    """A part of a summary."""

    text: str


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """Text of the assistant's."""

    text: str


class Refusal(Struct, frozen=True, tag_field="type", tag="refusal"):
    """A refusal of the assistant's."""

    refusal: str


class Tool(Struct, frozen=True, tag_field="type", tag="function", omit_defaults=True):
    """A function; without ``strict`` the API would take its schema for a strict one."""

    name: str
    parameters: Raw
    strict: Raw
    description: str | UnsetType = UNSET


class _InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class _InputImage(Struct, frozen=True, tag_field="type", tag="input_image", omit_defaults=True):
    image_url: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET


class _InputFile(Struct, frozen=True, tag_field="type", tag="input_file", omit_defaults=True):
    filename: str | UnsetType = UNSET
    file_data: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    file_url: str | UnsetType = UNSET


class ResponsesParts:
    """The parts of a user's message."""

    def text(self, text: str) -> Any:  # noqa: ANN401  a part, ready to encode
        """Plain text."""
        return _InputText(text)

    def image(self, url: str) -> Any:  # noqa: ANN401  a part
        """An image by its URL, or as a data URL."""
        return _InputImage(image_url=url)

    def uploaded_image(self, file_id: str) -> Any:  # noqa: ANN401  a part
        """An image that was uploaded before."""
        return _InputImage(file_id=file_id)

    def file(self, name: str, url: str) -> Any:  # noqa: ANN401  a part
        """A document as a data URL."""
        return _InputFile(filename=name, file_data=url)

    def uploaded_file(self, file_id: str) -> Any:  # noqa: ANN401  a part
        """A document that was uploaded before."""
        return _InputFile(file_id=file_id)

    def linked_file(self, url: str) -> Any:  # noqa: ANN401  a part
        """A document that lies elsewhere."""
        return _InputFile(file_url=url)
