"""What the typed readers share: the document around the messages, the decode, and the check of what it passes over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.history.healthy import Stretch, healthy_stretch
from pipeline.history.readers.rawjson import MAX_NESTING, is_utf8, may_nest_too_deeply
from pipeline.model import Text, Turn

TypedShape: TypeAlias = Literal["anthropic", "openai-chat", "bedrock-converse"]
"""The shapes that have a typed reader."""

_T = TypeVar("_T")


# What Converse has beside its messages, and our names for it.
_CONVERSE_KEYS: Final = {
    "model_id": "modelId",
    "tool_config": "toolConfig",
    "inference_config": "inferenceConfig",
    "additional_model_request_fields": "additionalModelRequestFields",
    "additional_model_response_field_paths": "additionalModelResponseFieldPaths",
    "guardrail_config": "guardrailConfig",
    "output_config": "outputConfig",
    "performance_config": "performanceConfig",
    "prompt_variables": "promptVariables",
    "request_metadata": "requestMetadata",
    "service_tier": "serviceTier",
}


class WholeDocument(Struct, Generic[_T], frozen=True, forbid_unknown_fields=True, rename=_CONVERSE_KEYS):
    """A healthy document: the messages, and the usual keys beside them as they are written."""

    messages: tuple[_T, ...]
    system: Raw | UnsetType = UNSET
    tools: Raw | UnsetType = UNSET
    model: Raw | UnsetType = UNSET
    params: Raw | UnsetType = UNSET
    max_tokens: Raw | UnsetType = UNSET
    max_completion_tokens: Raw | UnsetType = UNSET
    temperature: Raw | UnsetType = UNSET
    top_p: Raw | UnsetType = UNSET
    top_k: Raw | UnsetType = UNSET
    stop: Raw | UnsetType = UNSET
    stop_sequences: Raw | UnsetType = UNSET
    stream: Raw | UnsetType = UNSET
    stream_options: Raw | UnsetType = UNSET
    thinking: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    parallel_tool_calls: Raw | UnsetType = UNSET
    response_format: Raw | UnsetType = UNSET
    metadata: Raw | UnsetType = UNSET
    cache_control: Raw | UnsetType = UNSET
    model_id: Raw | UnsetType = UNSET
    tool_config: Raw | UnsetType = UNSET
    inference_config: Raw | UnsetType = UNSET
    additional_model_request_fields: Raw | UnsetType = UNSET
    additional_model_response_field_paths: Raw | UnsetType = UNSET
    guardrail_config: Raw | UnsetType = UNSET
    output_config: Raw | UnsetType = UNSET
    performance_config: Raw | UnsetType = UNSET
    prompt_variables: Raw | UnsetType = UNSET
    request_metadata: Raw | UnsetType = UNSET
    service_tier: Raw | UnsetType = UNSET


# The fields beside the messages, and their keys.
_BESIDE: Final = tuple(zip(WholeDocument.__struct_fields__, WholeDocument.__struct_encode_fields__, strict=True))[1:]


class Healthy(Struct, frozen=True):
    """What a typed reader gives: the turns, the keys beside the messages, and the shape that they show.

    ``shape`` is ``anthropic`` where nothing shows that it is another. ``stretch`` is the beginning that has nothing to
    mend either, behind leading system messages.
    """

    turns: list[Turn]
    keys: dict[str, Raw]
    shape: TypedShape
    stretch: Stretch | None = None


def decoded(decoder: msgspec.json.Decoder[_T], value: Raw | bytes) -> _T | None:
    """What a typed decode gives, or None where the value does not fit."""
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def messages_of(
    of_list: msgspec.json.Decoder[tuple[_T, ...]], of_document: msgspec.json.Decoder[WholeDocument[_T]], text: bytes
) -> tuple[tuple[_T, ...], dict[str, Raw]] | None:
    """The messages of a list or a document, and the document's other keys."""
    if text.startswith(b"["):
        messages = decoded(of_list, text)
        return None if messages is None else (messages, {})
    document = decoded(of_document, text)
    if document is None:
        return None
    values = ((key, getattr(document, field)) for field, key in _BESIDE)
    return document.messages, {key: value for key, value in values if value is not UNSET}


def string_blocks(text: str, index: int) -> tuple[tuple[Text], tuple[str]]:
    """The block of a message that is a string, and its place."""
    return (Text(text=text),), (f"messages.{index}.content",)


def stretch_of(turns: Sequence[Turn]) -> tuple[Stretch | None, int]:
    """The stretch behind leading system messages that has nothing to mend, and the number of those."""
    leading = 0
    while leading < len(turns) and turns[leading].role == "system":
        leading += 1
    return healthy_stretch(turns[leading:] if leading else turns, is_harmless), leading


def is_harmless(data: bytes) -> bool:
    """The typed decode has seen to the syntax; what it passes over in raw values is the encoding and the depth."""
    return is_utf8(data) and not (len(data) > MAX_NESTING and may_nest_too_deeply(data))
