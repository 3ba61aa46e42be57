"""A Messages request without its messages: model, system, tools and the other parameters, in that order.

What another provider has under another name, with the same meaning, is translated; that is constant and makes no fix.
What the API has no name for is left out, and recorded. Parameters that are all Anthropic's stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from pipeline.fixes import Fix, make
from pipeline.history.pieces import Piece
from pipeline.model import Tool, on_the_wire
from pipeline.targets.base import Setting, WrittenHead
from pipeline.targets.marks import MOST_MARKS, POINT, is_mark, mark_of, raw_unmarked
from pipeline.targets.names import ToolNames, clamped, legal_name, read_choice, sort_params, unread_keys
from pipeline.text.flatten import prompt_texts

PARAMETERS: Final = frozenset(
    {
        "anthropic_beta", "anthropic_version", "betas", "billing_policy", "cache_control", "compaction", "container",
        "context_management", "diagnostics", "fallback_credit_token", "fallbacks", "inference_geo", "max_tokens",
        "mcp_servers", "metadata", "output_config", "output_format", "service_tier", "speed", "stop_sequences",
        "stream", "temperature", "thinking", "thread", "tool_choice", "top_k", "top_p", "user_profile_id",
        "workspace_id",
    }
)  # fmt: skip
"""The parameters that the API's documentation names, those of betas, Bedrock and Vertex included."""

# `temperature: range: 0..1` (ANT-39); OpenAI's and Gemini's goes up to 2.
_BOUNDS: Final = MappingProxyType({"temperature": (0, 1)})
# They stand elsewhere in the request.
_ELSEWHERE: Final = frozenset({"messages", "model", "system", "tools"})

_encode = msgspec.json.Encoder().encode


def written_params(given: Mapping[str, Raw], target: str, longest_name: int, fixes: list[Fix]) -> dict[str, Raw]:
    """The parameters as the API takes them; a tool that is chosen is named in at most ``longest_name`` characters."""
    params = {name: value for name, value in given.items() if name not in _ELSEWHERE}
    if not params.keys() <= PARAMETERS:
        found = sort_params(params)
        params = found.common | found.rest
    kept: dict[str, Raw] = {}
    for name, value in params.items():
        written = _choice(value, longest_name) if name == "tool_choice" else value
        if name in PARAMETERS and written is not None:
            kept[name] = written
        else:
            fixes.append(make("param_dropped", f"params.{name}", before=value, target=target, detail=name))
    return clamped(kept, _BOUNDS, target, fixes)


def _choice(value: Raw, longest_name: int) -> Raw | None:
    """A choice of a tool in the API's words, naming the tool as the tools do; None where it is no choice."""
    if bytes(value) == b"null":
        return value
    choice = read_choice(value)
    if choice is None:
        return None
    given: Any = msgspec.json.decode(value)
    own = isinstance(given, dict) and given.get("type") == choice.kind
    named = {"name": legal_name(choice.name, longest_name)} if choice.kind == "tool" else {}
    if own and given == given | named:
        return value
    return Raw(_encode((given if own else {"type": choice.kind}) | named))


_NAME: Final = "anthropic"
_LONGEST_NAME: Final = 128
# Tools that other providers run, by the type they name.
_FOREIGN: Final = frozenset(
    {"web_search_preview", "file_search", "code_interpreter", "computer_use_preview", "image_generation", "local_shell"}
)
# What else of a tool in another shape this API has under the same name.
_OWN_KEYS: Final = ("strict", "cache_control")


def write_head(setting: Setting, system: Sequence[Piece]) -> WrittenHead:
    """The head of every request of a session."""
    fixes: list[Fix] = []
    marks = _Marks(fixes)
    keys: dict[str, Raw] = {}
    if setting.model is not None:
        keys["model"] = Raw(_encode(setting.model))
    prompt = _system(setting.system, system, fixes)
    if prompt is not None:
        keys["system"] = prompt
    tools = _tools(setting.tools, fixes)
    if tools:
        keys["tools"] = Raw(_encode(tools))
    keys |= written_params(setting.params, _NAME, _LONGEST_NAME, fixes)
    # Anthropic reads tools before the system prompt, so breakpoints are counted in that order.
    for key in ("tools", "system"):
        if key in keys:
            keys[key] = marks.limit(keys[key], key)
    return WrittenHead(_encode(keys), fixes, marks.count)


class _Marks:
    def __init__(self, fixes: list[Fix]) -> None:
        self.count = 0
        self._fixes = fixes

    def limit(self, value: Raw, path: str) -> Raw:
        """Take off what is over the limit; nothing is written anew where it is not."""
        if b'"cache_control"' not in bytes(value) or bytes(value)[:1] != b"[":
            return value
        items = msgspec.json.decode(value, type=list[Raw])
        taken = False
        for at, item in enumerate(items):
            bare, marks = raw_unmarked(item)
            mark = msgspec.json.decode(item, type=dict[str, Raw]).get("cache_control")
            if mark is not None and not is_mark(mark):
                items[at], taken = bare, True
                self._fixes.append(make("cache_mark_dropped", f"{path}.{at}", target=_NAME))
            elif self.count + marks > MOST_MARKS:
                items[at], taken = bare, True
                self._fixes.append(make("cache_control_dropped", f"{path}.{at}", target=_NAME))
            else:
                self.count += marks
        return Raw(_encode(items)) if taken else value


def _system(given: str | Raw | None, rows: Sequence[Piece], fixes: list[Fix]) -> Raw | None:
    """The system prompt, followed by the history's leading system messages."""
    texts = [on_the_wire(piece.block) for piece in rows]
    if isinstance(given, str) and not texts:
        return Raw(_encode(given))
    blocks = _system_blocks(given, fixes)
    return Raw(_encode([*blocks, *texts])) if blocks or texts else None


def _system_blocks(given: str | Raw | None, fixes: list[Fix]) -> list[Any]:
    """The blocks of a system prompt; the breakpoint of one that says nothing goes to the one before it."""
    blocks: list[dict[str, Any]] = []
    for block in prompt_texts(given, _NAME, fixes):
        mark = block.keys.get("cache_control")
        if block.text:
            blocks.append({"type": "text", **block.keys, "text": block.text})
            continue
        if bytes(block.keys.get("text", b"null")) != b"null":
            # This API refuses a request for an empty one.
            fixes.append(make("blank_dropped", f"system.{block.at}", before=block.keys, target=_NAME))
        if mark is not None and blocks:
            blocks[-1].setdefault("cache_control", mark)
    return blocks


def _tools(tools: Sequence[Tool], fixes: list[Fix]) -> list[dict[str, Any]]:
    names = ToolNames(_NAME, lambda name: legal_name(name, _LONGEST_NAME), fixes)
    written: list[dict[str, Any]] = []
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        given: dict[str, Raw] | None = None if tool.raw is UNSET else _object(tool.raw)
        if given is not None and POINT in given:
            mark = mark_of(tool.raw)  # type: ignore[arg-type]  # it is set where there are keys
            if mark is None or not written:
                fixes.append(make("cache_mark_dropped", path, target=_NAME))
            else:
                written[-1]["cache_control"] = mark
        elif given is not None and _foreign(given):
            fixes.append(make("tool_foreign", path, before=given, target=_NAME))
        elif (declared := names.declare(tool, given, path)) is not None:
            if given is not None and ("input_schema" in given or bytes(tool.input_schema) == b"null"):
                changed: dict[str, Any] = {"name": declared.name} if declared.name != tool.name else {}
                if declared.input_schema != tool.input_schema:
                    changed["input_schema"] = declared.input_schema
                written.append(given | {key: value for key, value in changed.items() if key in given})
            else:
                written.append(_client_tool(declared, given, path, fixes))
    return written


def _client_tool(tool: Tool, given: Mapping[str, Raw] | None, path: str, fixes: list[Fix]) -> dict[str, Any]:
    """A tool in another shape, or in none, with what of it this API has a place for."""
    said = {} if tool.description is UNSET else {"description": tool.description}
    written = {"name": tool.name, **said, "input_schema": tool.input_schema}
    if given is None:
        return written
    if extras := unread_keys(given, *_OWN_KEYS):
        fixes.append(make("field_dropped", path, before=given, target=_NAME, detail=extras))
    inner = next((_object(given[key]) for key in ("function", "toolSpec") if key in given), {})
    keys = {**given, **inner}
    return written | {key: keys[key] for key in _OWN_KEYS if key in keys and bytes(keys[key]) != b"null"}


def _object(value: Raw) -> dict[str, Raw]:
    return msgspec.json.decode(value, type=dict[str, Raw])


def _foreign(keys: Mapping[str, Raw]) -> bool:
    """Whether a provider's own tool is another provider's: Anthropic's name a type that no other has."""
    if not keys.keys().isdisjoint(("input_schema", "name", "function", "toolSpec")):
        return False
    kind = msgspec.json.decode(keys["type"]) if "type" in keys else None
    return not isinstance(kind, str) or kind in _FOREIGN
