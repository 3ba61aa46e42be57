"""A Converse request without its messages. The model is in the URL, so the body does not name it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from pipeline.fixes import Fix
from pipeline.history.pieces import Piece
from pipeline.model import Text, Tool
from pipeline.targets.base import Setting
from pipeline.targets.bedrock_converse.blocks import tool_name
from pipeline.targets.head import HeadShape, HeadWriter, Params
from pipeline.targets.marks import MOST_MARKS, mark_of, point_of

NAME: Final = "bedrock-converse"

# Families that keep a prompt in a cache; the others refuse breakpoints.
_CACHED: Final = ("claude", "nova")
# What Claude takes under Anthropic's name, beside the service's own parameters.
_OF_CLAUDE: Final = ("top_k", "thinking")
# A block of a system prompt that is the service's own.
_GUARDED: Final = frozenset({frozenset({"guardContent"})})
_OWN_TOOLS: Final = ({"toolSpec"}, {"systemTool"}, {"cachePoint"})

_encode = msgspec.json.Encoder().encode


class ConverseHead(Struct, frozen=True):
    """The head as JSON objects: ``keys`` before the messages, ``tools`` (none: ``b""``) behind them.

    ``points_left`` is how many cache breakpoints the messages may have.
    """

    keys: dict[str, Any]
    tools: bytes
    fixes: list[Fix]
    points_left: int


def write_head(setting: Setting, system: Sequence[Piece]) -> ConverseHead:
    """What stands around the messages of every request of a session."""
    writer = HeadWriter(_SHAPE, setting)
    keys: dict[str, Any] = {}
    model = (setting.model or "").lower()
    cached = not model or any(name in model for name in _CACHED)
    prompt = [*_given_system(writer), *_system_rows(writer.system_rows(system))]
    if not cached:
        prompt = _unmarked(prompt, "system", writer)
    if prompt:
        keys["system"] = prompt
    params = writer.read_params()
    if "claude" in model:
        params = _with_fields(params)
    keys |= writer.placed(params)
    tools = [Raw(tool) for tool in _tools(writer)]
    if not cached:
        tools = _unmarked(tools, "tools", writer)
    choice = writer.choice(params, tools=bool(tools))
    config: dict[str, Any] = {"tools": tools}
    if choice is not None:
        config["toolChoice"] = {choice.kind: {"name": tool_name(choice.name)} if choice.kind == "tool" else {}}
    points = sum(mark_of(_encoded(item)) is not None for item in (*prompt, *tools))
    left = max(0, MOST_MARKS - points) if cached else 0
    return ConverseHead(keys, _encode(config) if tools else b"", writer.fixes, left)


def stub_tools(names: Iterable[str]) -> bytes:
    """A tool configuration that declares the tools a history calls, by their names alone (BED-10)."""
    return _encode({"tools": [_specified(name, UNSET, Raw(b'{"type":"object","properties":{}}')) for name in names]})


def _with_fields(params: Params) -> Params:
    """The parameters with those that Claude takes under Anthropic's names among the model's own; given ones win."""
    fields = {name: params.values[name] for name in _OF_CLAUDE if name in params.values}
    if not fields:
        return params
    given: Any = msgspec.json.decode(params.values.get("additionalModelRequestFields", b"{}"))
    joined = Raw(_encode({**fields, **given} if isinstance(given, dict) else fields))
    values = {name: value for name, value in params.values.items() if name not in fields}
    return structs.replace(params, values=values | {"additionalModelRequestFields": joined})


def _given_system(writer: HeadWriter) -> Iterator[Any]:
    for block in writer.prompt_texts(_GUARDED):
        if block.text:
            yield {"text": block.text}
        elif frozenset(block.keys) in _GUARDED:
            yield block.keys
        yield from _points(block.keys, f"system.{block.at}", writer)


def _points(keys: Mapping[str, Raw], path: str, writer: HeadWriter) -> Iterator[Raw]:
    """The breakpoint of a block or tool as a block of its own behind it, if it has one that is one."""
    mark = keys.get("cache_control")
    if mark is None or bytes(mark) == b"null":
        return
    point = point_of(mark)
    if point is None:
        writer.note_fix("cache_mark_dropped", path, before=mark)
    else:
        yield point


def _system_rows(rows: Sequence[Piece]) -> Iterator[Any]:
    for piece in rows:
        if isinstance(piece.block, Text):
            yield {"text": piece.block.text}
            point = None if piece.block.cache_control is UNSET else point_of(piece.block.cache_control)
            if point is not None:
                yield point


def _tools(writer: HeadWriter) -> Iterator[bytes]:
    for each in writer.declared_tools():
        if each.own:
            yield _encode(each.given)
            continue
        made = _specified(each.tool.name, each.tool.description, each.tool.input_schema)
        if "strict" in each.members:
            made["toolSpec"]["strict"] = each.members["strict"]
        writer.note_unread(each, "strict", "cache_control")
        yield _encode(made)
        yield from map(bytes, _points(each.given, each.path, writer))


def _is_own(tool: Tool, given: Mapping[str, Raw]) -> bool:
    return bytes(tool.input_schema) == b"null" and given.keys() in _OWN_TOOLS


def _unmarked(items: list[Any], path: str, writer: HeadWriter) -> list[Any]:
    kept = [item for item in items if mark_of(_encoded(item)) is None]
    if len(kept) < len(items):
        writer.note_fix("cache_mark_dropped", path)
    return kept


def _encoded(item: Any) -> Raw:  # noqa: ANN401  JSON
    return item if isinstance(item, Raw) else Raw(_encode(item))


def _specified(name: str, description: str | msgspec.UnsetType, schema: Raw) -> dict[str, Any]:
    said = {} if description is UNSET or not description else {"description": description}
    return {"toolSpec": {"name": name, **said, "inputSchema": {"json": schema}}}


_SHAPE: Final = HeadShape(
    target=NAME,
    places={
        "max_tokens": "inferenceConfig.maxTokens",
        "temperature": "inferenceConfig.temperature",
        "top_p": "inferenceConfig.topP",
        "stop_sequences": "inferenceConfig.stopSequences",
        **{
            name: name
            for name in (
                "guardrailConfig", "additionalModelRequestFields", "promptVariables",
                "additionalModelResponseFieldPaths", "requestMetadata", "performanceConfig", "serviceTier",
                "outputConfig",
            )
        },
    },
    elsewhere=frozenset({"messages", "model", "modelId", "system", "tools", "tool_choice"}),
    # Beyond these the service refuses a request (BED-34).
    bounds={"max_tokens": (1, math.inf), "temperature": (0, 1), "top_p": (0, 1)},
    tool_name=tool_name,
    is_own=_is_own,
    # There is none for no tool at all.
    choices=("auto", "any", "tool"),
)  # fmt: skip
