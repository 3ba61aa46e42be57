"""Chat Completions on the wire: what a message, its parts and its calls may hold.

Keys that are not named here are skipped: the provider was seen to take ``annotations`` and ``index``, and look-alikes
have their own. Free-form JSON is skipped too, not kept.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import UNSET, Raw, Struct, UnsetType

Role: TypeAlias = Literal["system", "assistant", "user", "function", "tool", "developer"]


class Anything(Struct, frozen=True, gc=False):
    """Any JSON object; its keys are skipped."""


class ImageUrl(Struct, frozen=True, gc=False):
    """Where an image is: a URL, or the image itself as a data URL."""

    url: str


class FileData(Struct, frozen=True, gc=False):
    """A file uploaded before, or the file itself as a data URL with a name."""

    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None
    data: Raw | UnsetType = UNSET  # of no version of the API


class Text(Struct, frozen=True, gc=False, tag_field="type", tag="text"):
    text: str


class Image(Struct, frozen=True, gc=False, tag_field="type", tag="image_url"):
    """An image; the bare string was recorded accepted."""

    image_url: str | ImageUrl


class Audio(Struct, frozen=True, gc=False, tag_field="type", tag="input_audio"):
    input_audio: Anything


class Refusal(Struct, frozen=True, gc=False, tag_field="type", tag="refusal"):
    refusal: str


class PriorAudio(Struct, frozen=True, gc=False, tag_field="type", tag="audio"):
    """Speech of the assistant's, by reference."""


class File(Struct, frozen=True, gc=False, tag_field="type", tag="file"):
    file: FileData


class Function(Struct, frozen=True, gc=False):
    """The function that a call names, its arguments as JSON text."""

    name: str
    arguments: str


class Custom(Struct, frozen=True, gc=False):
    """A custom tool's call: free text."""

    name: str
    input: str


class FunctionCall(Struct, frozen=True, gc=False, tag_field="type", tag="function"):
    id: str
    function: Function


class CustomCall(Struct, frozen=True, gc=False, tag_field="type", tag="custom"):
    """A call of a tool that takes free text."""

    id: str
    custom: Custom


Part: TypeAlias = Text | Image | Audio | Refusal | PriorAudio | File
Call: TypeAlias = FunctionCall | CustomCall
PARTS = ("text", "image_url", "input_audio", "refusal", "audio", "file")  # as the provider lists them
ROLES = ("system", "assistant", "user", "function", "tool", "developer")


class Message(Struct, frozen=True, gc=False):
    """One message of any role; which fields a role has is the rules' matter."""

    role: Role
    content: str | list[Part] | UnsetType | None = UNSET
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    function_call: Raw | UnsetType = UNSET
    refusal: Raw | UnsetType = UNSET
    audio: Raw | UnsetType = UNSET
    # Look-alikes': DeepSeek's and Kimi's; Mistral's.
    reasoning_content: Raw | UnsetType = UNSET
    prefix: bool | None = None


class _Named(Struct, frozen=True, gc=False):
    name: str


class FunctionTool(Struct, frozen=True, gc=False):
    """A tool of the caller's, as far as it is judged."""

    function: _Named


PARAMETERS = frozenset(
    {
        "audio", "frequency_penalty", "function_call", "functions", "logit_bias", "logprobs", "max_completion_tokens",
        "max_tokens", "messages", "metadata", "modalities", "model", "moderation", "n", "parallel_tool_calls",
        "prediction", "presence_penalty", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
        "reasoning_effort", "response_format", "safety_identifier", "seed", "service_tier", "stop", "store", "stream",
        "stream_options", "temperature", "tool_choice", "tools", "top_logprobs", "top_p", "user", "verbosity",
        "web_search_options",
    }
)  # fmt: skip
