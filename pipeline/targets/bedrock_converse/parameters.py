"""A Converse request without its messages. The model is in the URL, so the body does not name it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from pipeline.fixes import Fix, make
from pipeline.history.pieces import Piece
from pipeline.model import Text, Tool
from pipeline.targets.base import Setting
from pipeline.targets.bedrock_converse.blocks import LONGEST_NAME
from pipeline.targets.marks import MOST_MARKS, mark_of, point_of
from pipeline.targets.names import ToolChoice, ToolNames, clamped, legal_name, read_choice, sort_params, unread_keys
from pipeline.text.flatten import prompt_texts

NAME: Final = "bedrock-converse"

_INFERENCE: Final = (
    ("max_tokens", "maxTokens"),
    ("temperature", "temperature"),
    ("top_p", "topP"),
    ("stop_sequences", "stopSequences"),
)
# Beyond these the service refuses a request (BED-34).
_BOUNDS: Final = MappingProxyType({"max_tokens": (1, math.inf), "temperature": (0, 1), "top_p": (0, 1)})
# The service's own parameters besides, in the order in which they are written.
_OWN: Final = (
    "guardrailConfig",
    "additionalModelRequestFields",
    "promptVariables",
    "additionalModelResponseFieldPaths",
    "requestMetadata",
    "performanceConfig",
    "serviceTier",
    "outputConfig",
)
# Families that keep a prompt in a cache; the others refuse breakpoints.
_CACHED: Final = ("claude", "nova")
# What Claude takes under Anthropic's name, beside the service's own parameters.
_OF_CLAUDE: Final = ("top_k", "thinking")
_ELSEWHERE: Final = frozenset({"messages", "model", "modelId", "system", "tools", "toolConfig", "tool_choice"})
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
    prompt = [*_given_system(setting.system, fixes), *_system_rows(system)]
    if not cached:
        prompt = _unmarked(prompt, "system", fixes)
    if prompt:
        keys["system"] = prompt
    params = sort_params(setting.params)
    common = clamped(params.common, _BOUNDS, NAME, fixes)
    inference = {own: common[name] for name, own in _INFERENCE if name in common}
    if inference:
        keys["inferenceConfig"] = inference
    more: dict[str, Any] = params.common | params.rest
    if "claude" in model:
        fields: dict[str, Raw] = {name: more.pop(name) for name in _OF_CLAUDE if name in more}
        if fields:
            more["additionalModelRequestFields"] = _joined(fields, more.get("additionalModelRequestFields"))
    keys |= {name: more[name] for name in _OWN if name in more}
    for name, value in more.items():
        if name not in _OWN and name not in _ELSEWHERE and name not in dict(_INFERENCE):
            fixes.append(make("param_dropped", f"params.{name}", before=value, target=NAME, detail=name))
    tools = [Raw(tool) for tool in _tools(setting.tools, fixes)]
    if not cached:
        tools = _unmarked(tools, "tools", fixes)
    choice = _choice(params.rest.get("tool_choice"), fixes, any_tool=bool(tools))
    config = {"tools": tools} | ({"toolChoice": choice} if choice else {})
    points = sum(mark_of(_encoded(item)) is not None for item in (*prompt, *tools))
    left = max(0, MOST_MARKS - points) if cached else 0
    return WrittenHead(keys, _encode(config) if tools else b"", fixes, left)


def stub_tools(names: Iterable[str]) -> bytes:
    """A tool configuration that declares the tools a history calls, by their names alone (BED-10)."""
    return _encode({"tools": [_specified(name, UNSET, Raw(b'{"type":"object","properties":{}}')) for name in names]})


def _joined(fields: Mapping[str, Raw], given: Raw | None) -> dict[str, Any]:
    """Fields for the model beside those given; the given ones win."""
    own: Any = msgspec.json.decode(given) if given is not None else {}
    return {**fields, **own} if isinstance(own, dict) else dict(fields)


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
    names = ToolNames(NAME, lambda name: legal_name(name, LONGEST_NAME), fixes)
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        given = None if tool.raw is UNSET else msgspec.json.decode(tool.raw, type=dict[str, Raw])
        if given is not None and bytes(tool.input_schema) == b"null":
            if given.keys() in _OWN_TOOLS:
                yield _encode(given)
            else:
                fixes.append(make("tool_foreign", path, before=given, target=NAME))
            continue
        declared = names.declare(tool, given, path)
        if declared is None:
            continue
        made = _specified(declared.name, declared.description, declared.input_schema)
        yield _encode(made if given is None else _with_extras(made, given, path, fixes))
        yield from map(bytes, _points(given or {}, path, fixes))


def _unmarked(items: list[Any], path: str, fixes: list[Fix]) -> list[Any]:
    """The items without cache breakpoints."""
    kept = [item for item in items if mark_of(_encoded(item)) is None]
    if len(kept) < len(items):
        fixes.append(make("cache_mark_dropped", path, target=NAME))
    return kept


def _encoded(item: Any) -> Raw:  # noqa: ANN401  JSON
    return item if isinstance(item, Raw) else Raw(_encode(item))


def _with_extras(made: dict[str, Any], given: dict[str, Raw], path: str, fixes: list[Fix]) -> dict[str, Any]:
    """A tool that was given in more or other words; ``strict`` is Converse's too."""
    spec = next((given[key] for key in ("toolSpec", "function") if key in given), None)
    inner = given if spec is None else msgspec.json.decode(spec, type=dict[str, Raw])
    if "strict" in inner:
        made["toolSpec"]["strict"] = inner["strict"]
    extras = unread_keys(given, "strict", "cache_control")
    if extras:
        fixes.append(make("field_dropped", path, before=given, target=NAME, detail=extras))
    return made


def _specified(name: str, description: str | msgspec.UnsetType, schema: Raw) -> dict[str, Any]:
    said = {} if description is UNSET or not description else {"description": description}
    return {"toolSpec": {"name": name, **said, "inputSchema": {"json": schema}}}


def _choice(value: Raw | None, fixes: list[Fix], *, any_tool: bool) -> dict[str, Any] | None:
    """The tool choice; Converse has none for no tool at all."""
    if value is None:
        return None
    choice = read_choice(value)
    if choice is None or choice.kind == "none" or not any_tool:
        fixes.append(make("param_dropped", "params.tool_choice", before=value, target=NAME, detail="tool_choice"))
        return None
    return _written_choice(choice)


def _written_choice(choice: ToolChoice) -> dict[str, Any]:
    if choice.kind == "tool":
        return {"tool": {"name": legal_name(choice.name, LONGEST_NAME)}}
    return {choice.kind: {}}
