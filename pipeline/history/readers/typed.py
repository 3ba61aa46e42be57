"""Healthy messages go from bytes straight into the model's structs, in one typed decode.

There are two wire forms here, the canonical one and OpenAI's, which are tried in this order (Converse's stands beside
its tolerant reader, and shares the document around the messages). What fits none is not mended here: the functions
return None, and the message is read tolerantly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.history.clean import url_source
from pipeline.history.healthy import Stretch, healthy_stretches
from pipeline.history.native import CHAT, as_json
from pipeline.history.readers.fields import arguments_object
from pipeline.history.readers.rawjson import MAX_NESTING, is_utf8, may_nest_too_deeply
from pipeline.model import (
    Block,
    Document,
    Image,
    Own,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)

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

    ``shape`` is ``anthropic`` where nothing shows that it is another. ``stretches`` have nothing to mend either.
    """

    turns: list[Turn]
    keys: dict[str, Raw]
    shape: TypedShape
    stretches: Sequence[Stretch] = ()


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


def is_harmless(data: bytes) -> bool:
    """The typed decode has seen to the syntax; what it passes over in raw values is the encoding and the depth."""
    return is_utf8(data) and not (len(data) > MAX_NESTING and may_nest_too_deeply(data))


Typed: TypeAlias = Text | Image | Document | Thinking | RedactedThinking | ToolUse | ToolResult
"""The blocks that the model knows; that a block calls itself unknown is not for the wire to say."""


class Message(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, gc=False):
    """A healthy message of the canonical shape."""

    role: Role
    content: str | tuple[Typed, ...]
    id: str | None = None
    type: Literal["message"] = "message"


class _Function(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    name: str
    arguments: str


class _Call(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str
    function: _Function
    type: Literal["function"] = "function"
    index: int = 0


class _Address(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    url: str
    detail: Literal["auto", "low", "high"] = "auto"


class _ImagePart(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="image_url", gc=False):
    image_url: _Address


class OpenAIMessage(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A healthy message of OpenAI's shape. ``name`` says for a tool's row what its call says already."""

    role: Literal["user", "assistant", "system", "developer", "tool"]
    content: str | tuple[Typed | _ImagePart, ...] | None = None
    id: str | None = None
    tool_calls: tuple[_Call, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None


_CANONICAL_DOCUMENT: Final = msgspec.json.Decoder(WholeDocument[Message])
_CANONICAL_LIST: Final = msgspec.json.Decoder(tuple[Message, ...])
_CANONICAL_MESSAGE: Final = msgspec.json.Decoder(Message)
_OPENAI_DOCUMENT: Final = msgspec.json.Decoder(WholeDocument[OpenAIMessage])
_OPENAI_LIST: Final = msgspec.json.Decoder(tuple[OpenAIMessage, ...])
_OPENAI_MESSAGE: Final = msgspec.json.Decoder(OpenAIMessage)
_BLOCK: Final[msgspec.json.Decoder[Typed]] = msgspec.json.Decoder(Typed)
_FREE_FORM: Final[dict[type, tuple[str, ...]]] = {
    Text: ("citations", "cache_control"),
    Image: ("source", "cache_control"),
    Document: ("source", "citations", "cache_control"),
    Thinking: ("cache_control",),
    RedactedThinking: ("cache_control",),
    ToolUse: ("caller", "cache_control"),
    ToolResult: ("cache_control",),
}
_OPEN_BRACE: Final = ord("{")
# What only OpenAI's messages have, as it is written: names of members, roles, and types of parts.
_OF_ROWS: Final = re.compile(rb'"(?:tool_calls|tool_call_id|tool|developer|image_url)"')


def read_document(text: bytes, shape: str | None) -> Healthy | None:
    """A document or list of which every message is healthy and of the shape that was named, or None."""
    if shape != "openai-chat":
        found = messages_of(_CANONICAL_LIST, _CANONICAL_DOCUMENT, text)
        if found is not None:
            messages, keys = found
            turns = _canonical_turns(messages)
            stretches = healthy_stretches(turns, _is_sound)
            return Healthy(turns, keys, "anthropic", stretches) if _are_sound(_unseen(turns, stretches)) else None
    if shape in (None, "openai-chat"):
        other = messages_of(_OPENAI_LIST, _OPENAI_DOCUMENT, text)
        if other is not None:
            rows, keys = other
            spoken = _openai_turns(rows)
            if spoken is not None:
                return Healthy(spoken, keys, _shape(rows), healthy_stretches(spoken))
    return None


def read_message(value: Raw | bytes, index: int, shape: str | None) -> Healthy | None:
    """One message if it is healthy and of the shape that was named, else of the one that its keys tell; or None."""
    if shape == "openai-chat" or (shape is None and _OF_ROWS.search(value)):
        row = decoded(_OPENAI_MESSAGE, value)
        spoken = None if row is None else _openai_turns((row,), index)
        return None if row is None or spoken is None else Healthy(spoken, {}, _shape((row,)))
    message = decoded(_CANONICAL_MESSAGE, value)
    turns = [] if message is None else _canonical_turns((message,), index)
    return Healthy(turns, {}, "anthropic") if turns and _are_sound(turns) else None


def decode_block(value: Raw | bytes) -> Block | None:
    """A block as the model's struct, or None where it needs mending."""
    block = decoded(_BLOCK, value)
    return block if block is not None and _is_sound(block) else None


def _is_openai(message: OpenAIMessage) -> bool:
    if message.tool_calls is not None or message.tool_call_id is not None or message.role in ("tool", "developer"):
        return True
    return isinstance(message.content, tuple) and any(isinstance(part, _ImagePart) for part in message.content)


def _shape(messages: Iterable[OpenAIMessage]) -> TypedShape:
    return "openai-chat" if any(map(_is_openai, messages)) else "anthropic"


def _canonical_turns(messages: Sequence[Message], first: int = 0) -> list[Turn]:
    """The turns of canonical messages, numbered from ``first``."""
    return [
        Turn(role=message.role, blocks=message.content, index=index, id=message.id)
        if type(message.content) is tuple
        else _string_turn(message, index)
        for index, message in enumerate(messages, first)
    ]


def _string_turn(message: Message, index: int) -> Turn:
    blocks, paths = string_blocks(str(message.content), index)
    return Turn(role=message.role, blocks=blocks, index=index, id=message.id, paths=paths)


def _unseen(turns: Sequence[Turn], stretches: Iterable[Stretch]) -> Iterator[Turn]:
    """The turns of which nobody has seen yet whether their free-form JSON is sound."""
    at = 0
    for stretch in stretches:
        yield from turns[at : stretch.start]
        at = stretch.start + stretch.turns
    yield from turns[at:]


def _are_sound(turns: Iterable[Turn]) -> bool:
    """Whether no block of these turns needs mending."""
    return all(_is_sound(block) for turn in turns for block in turn.blocks)


def _openai_turns(messages: Sequence[OpenAIMessage], first: int = 0) -> list[Turn] | None:
    """The turns of OpenAI's messages, numbered from ``first``, or None where any needs mending."""
    turns: list[Turn] = []
    for index, message in enumerate(messages, first):
        turn = _result_turn(message, index) if message.role == "tool" else _spoken_turn(message, index)
        if turn is None:
            return None
        turns.append(turn)
    return turns


def _result_turn(message: OpenAIMessage, index: int) -> Turn | None:
    if message.tool_call_id is None or message.tool_calls is not None:
        return None
    content = message.content
    if isinstance(content, tuple):
        parts = [block for block in _blocks(content) or () if isinstance(block, (Text, Image, Document))]
        if len(parts) < len(content):
            return None
        result = ToolResult(tool_use_id=message.tool_call_id, content=[*parts])
    else:
        result = ToolResult(tool_use_id=message.tool_call_id, content=UNSET if content is None else content)
    paths = (f"messages.{index}.content",)
    own = UNSET if message.name is None else _own(name=message.name)
    return Turn(role="user", blocks=(result,), index=index, id=message.id, paths=paths, own=own)


def _blocks(parts: Iterable[Typed | _ImagePart]) -> tuple[Typed, ...] | None:
    """The blocks of a content's parts, or None where any needs mending."""
    blocks: list[Typed] = []
    for part in parts:
        block = _image(part.image_url) if isinstance(part, _ImagePart) else part
        if block is None or (block is part and not _is_sound(block)):
            return None
        blocks.append(block)
    return tuple(blocks)


def _image(address: _Address) -> Image | None:
    source = url_source(address.url)
    own = UNSET if address.detail == "auto" else _own(detail=address.detail)
    return None if source is None else Image(source=as_json(source), own=own)


def _spoken_turn(message: OpenAIMessage, index: int) -> Turn | None:
    """A turn of the user, the system or the assistant: its content, then its calls."""
    if message.tool_call_id is not None or message.name is not None:
        return None
    role: Role = "system" if message.role == "developer" else "user" if message.role == "tool" else message.role
    path = f"messages.{index}.content"
    content, calls = message.content, message.tool_calls
    own = _own(role="developer") if message.role == "developer" else UNSET
    if calls is None and isinstance(content, str):
        return Turn(role=role, blocks=(Text(text=content),), index=index, id=message.id, paths=(path,), own=own)
    blocks: list[Block] = []
    paths: list[str] = []
    if isinstance(content, tuple):
        said = _blocks(content)
        if said is None:
            return None
        if not calls:
            return Turn(role=role, blocks=said, index=index, id=message.id, own=own)
        blocks += said
        paths += [f"{path}.{i}" for i in range(len(content))]
    elif content or (content is not None and not calls):
        # An empty string beside calls is how some say that there is no text.
        blocks.append(Text(text=content))
        paths.append(path)
    if calls and role != "assistant":
        return None
    if calls and content in ("", ()):
        own = _own(content=content)
    for i, call in enumerate(calls or ()):
        call_input = _arguments(call.function.arguments)
        if call_input is None:
            return None
        blocks.append(ToolUse(id=call.id, name=call.function.name, input=call_input))
        paths.append(f"messages.{index}.tool_calls.{i}")
    return Turn(role=role, blocks=tuple(blocks), index=index, id=message.id, paths=tuple(paths) or None, own=own)


def _own(**members: str | tuple[Typed | _ImagePart, ...]) -> Own:
    return Own(CHAT, {name: Raw(msgspec.json.encode(value)) for name, value in members.items()})


def _arguments(text: str) -> Raw | None:
    if len(text) > MAX_NESTING and may_nest_too_deeply(text.encode("utf-8", "replace")):
        return None
    return arguments_object(text)


def _is_sound(block: Typed | Unknown) -> bool:
    """Whether the free-form JSON in a block is of the right type, UTF-8, and can be no deeper than allowed.

    Members that readers alone give a block, of what only one provider has, must not come from the input.
    """
    if not isinstance(block, Unknown) and (block.own is not UNSET or (isinstance(block, Text) and block.structured)):
        return False
    if isinstance(block, ToolUse):
        data = bytes(block.input)
        if not (data[0] == _OPEN_BRACE or block.incomplete) or not is_harmless(data):
            return False
        if block.cache_control is UNSET and block.caller is UNSET:
            return True
    elif isinstance(block, ToolResult):
        if isinstance(block.content, list) and not all(map(_is_sound, block.content)):
            return False
        if block.cache_control is UNSET:
            return True
    elif isinstance(block, Unknown):
        return False
    for field in _FREE_FORM[type(block)]:
        value = getattr(block, field)
        if value is not UNSET and not is_harmless(bytes(value)):
            return False
    return True
