"""A Converse request without its messages. The model is in the URL, so the body does not name it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from pipeline.fixes import Fix, make
from pipeline.history.pieces import Piece
from pipeline.model import Text, Tool
from pipeline.targets.base import Setting
from pipeline.targets.bedrock_converse.blocks import LONGEST_NAME
from pipeline.targets.fitting import system_rows
from pipeline.targets.marks import MOST_MARKS, mark_of, point_of
from pipeline.targets.names import Params, chosen, clamped, declared_tools, legal_name, sort_params
from pipeline.text.flatten import prompt_texts

NAME: Final = "bedrock-converse"

_PLACES: Final = MappingProxyType(
    {
        "max_tokens": "inferenceConfig.maxTokens",
        "temperature": "inferenceConfig.temperature",
        "top_p": "inferenceConfig.topP",
        "stop_sequences": "inferenceConfig.stopSequences",
        "guardrailConfig": "guardrailConfig",
        "additionalModelRequestFields": "additionalModelRequestFields",
        "promptVariables": "promptVariables",
        "additionalModelResponseFieldPaths": "additionalModelResponseFieldPaths",
        "requestMetadata": "requestMetadata",
        "performanceConfig": "performanceConfig",
        "serviceTier": "serviceTier",
        "outputConfig": "outputConfig",
    }
)
# Beyond these the service refuses a request (BED-34).
_BOUNDS: Final = MappingProxyType({"max_tokens": (1, math.inf), "temperature": (0, 1), "top_p": (0, 1)})
# Families that keep a prompt in a cache; the others refuse breakpoints.
_CACHED: Final = ("claude", "nova")
# What Claude takes under Anthropic's name, beside the service's own parameters.
_OF_CLAUDE: Final = ("top_k", "thinking")
_ELSEWHERE: Final = frozenset({"messages", "model", "modelId", "system", "tools", "tool_choice"})
# There is none for no tool at all.
_CHOICES: Final = ("auto", "any", "tool")
# A block of a system prompt that is the service's own.
_GUARDED: Final = frozenset({frozenset({"guardContent"})})
_OWN_TOOLS: Final = ({"toolSpec"}, {"systemTool"}, {"cachePoint"})

_encode = msgspec.json.Encoder().encode


class WrittenHead(Struct, frozen=True):
    """The head as JSON objects: ``keys`` before the messages, ``tools`` (none: ``b""``) behind them.

    ``points_left`` is how many cache breakpoints the messages may have.
    """

    keys: dict[str, Any]
    tools: bytes
    fixes: list[Fix]
    points_left: int


def write_head(setting: Setting, system: Sequence[Piece]) -> WrittenHead:
    """What stands around the messages of every request of a session."""
    fixes: list[Fix] = []
    keys: dict[str, Any] = {}
    model = (setting.model or "").lower()
    cached = not model or any(name in model for name in _CACHED)
    prompt = [*_given_system(setting.system, fixes), *_system_rows(system_rows(system, NAME, fixes))]
    if not cached:
        prompt = _unmarked(prompt, "system", fixes)
    if prompt:
        keys["system"] = prompt
    params = clamped(sort_params(setting.params), _BOUNDS, NAME, fixes)
    if "claude" in model:
        params = _with_fields(params)
    keys |= params.at_places(_PLACES, NAME, fixes, _ELSEWHERE)
    tools = [Raw(tool) for tool in _tools(setting.tools, fixes)]
    if not cached:
        tools = _unmarked(tools, "tools", fixes)
    choice = chosen(params, NAME, fixes, kinds=_CHOICES if tools else ())
    config: dict[str, Any] = {"tools": tools}
    if choice is not None:
        named = {"name": legal_name(choice.name, LONGEST_NAME)} if choice.kind == "tool" else {}
        config["toolChoice"] = {choice.kind: named}
    points = sum(mark_of(_encoded(item)) is not None for item in (*prompt, *tools))
    left = max(0, MOST_MARKS - points) if cached else 0
    return WrittenHead(keys, _encode(config) if tools else b"", fixes, left)


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


def _given_system(given: str | Raw | None, fixes: list[Fix]) -> Iterator[Any]:
    for block in prompt_texts(given, NAME, fixes, _GUARDED):
        if block.text:
            yield {"text": block.text}
        elif frozenset(block.keys) in _GUARDED:
            yield block.keys
        yield from _points(block.keys, f"system.{block.at}", fixes)


def _points(keys: Mapping[str, Raw], path: str, fixes: list[Fix]) -> Iterator[Raw]:
    """The breakpoint of a block or tool as a block of its own behind it, if it has one that is one."""
    mark = keys.get("cache_control")
    if mark is None or bytes(mark) == b"null":
        return
    point = point_of(mark)
    if point is None:
        fixes.append(make("cache_mark_dropped", path, before=mark, target=NAME))
    else:
        yield point


def _system_rows(rows: Sequence[Piece]) -> Iterator[Any]:
    for piece in rows:
        if isinstance(piece.block, Text):
            yield {"text": piece.block.text}
            point = None if piece.block.cache_control is UNSET else point_of(piece.block.cache_control)
            if point is not None:
                yield point


def _tools(tools: Sequence[Tool], fixes: list[Fix]) -> Iterator[bytes]:
    for each in declared_tools(tools, NAME, lambda name: legal_name(name, LONGEST_NAME), _is_own, fixes):
        if each.own:
            yield _encode(each.given)
            continue
        made = _specified(each.tool.name, each.tool.description, each.tool.input_schema)
        if "strict" in each.members:
            made["toolSpec"]["strict"] = each.members["strict"]
        each.note_unread(NAME, fixes, "strict", "cache_control")
        yield _encode(made)
        yield from map(bytes, _points(each.given, each.path, fixes))


def _is_own(tool: Tool, given: Mapping[str, Raw]) -> bool:
    return bytes(tool.input_schema) == b"null" and given.keys() in _OWN_TOOLS


def _unmarked(items: list[Any], path: str, fixes: list[Fix]) -> list[Any]:
    """The items without cache breakpoints."""
    kept = [item for item in items if mark_of(_encoded(item)) is None]
    if len(kept) < len(items):
        fixes.append(make("cache_mark_dropped", path, target=NAME))
    return kept


def _encoded(item: Any) -> Raw:  # noqa: ANN401  JSON
    return item if isinstance(item, Raw) else Raw(_encode(item))


def _specified(name: str, description: str | msgspec.UnsetType, schema: Raw) -> dict[str, Any]:
    said = {} if description is UNSET or not description else {"description": description}
    return {"toolSpec": {"name": name, **said, "inputSchema": {"json": schema}}}
