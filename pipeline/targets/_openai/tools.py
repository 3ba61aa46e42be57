"""Tools, and the choice among them, for OpenAI's two APIs.

A client's tool is a name, a description and a schema in every API; ``strict`` is OpenAI's and Anthropic's. Cache
breakpoints on tools are left behind: these APIs cache by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.fixes import Fix, make
from pipeline.model import Tool
from pipeline.targets.names import legal_name

LONGEST_NAME: Final = 64  # characters (OAI-04b, RSP-11)
_NULL: Final = b"null"
# What is read from a tool of any shape, or says nothing that these APIs could use.
_READ_KEYS: Final = frozenset(
    {"type", "function", "toolSpec", "name", "description", "parameters", "inputSchema", "input_schema", "strict"}
    | {"cache_control"}
)
_CHOICES: Final[Mapping[str, str]] = {"auto": "auto", "any": "required", "required": "required", "none": "none"}


class Function(Struct, frozen=True, omit_defaults=True):
    """A client's tool, ready for either API to put into its own form."""

    name: str
    parameters: Raw
    description: str | UnsetType = UNSET
    strict: Raw | UnsetType = UNSET


def write_tools(
    tools: Sequence[Tool],
    target: str,
    form: Callable[[Function], Any],
    own_tool: Callable[[Mapping[str, Any]], bool],
    fixes: list[Fix],
) -> list[Any]:
    """The tools in an API's form; ``own_tool`` tells the provider's own, which go as they are."""
    written: list[Any] = []
    seen: set[str] = set()
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        keys: dict[str, Any] = {} if tool.raw is UNSET else msgspec.json.decode(tool.raw, type=dict[str, Raw])
        if keys and own_tool(keys):
            written.append(tool.raw)
            continue
        if bytes(tool.input_schema) == _NULL:
            fixes.append(make("tool_foreign", path, before=keys or tool, target=target))
            continue
        name = legal_name(tool.name, LONGEST_NAME)
        if name in seen:
            fixes.append(make("tool_repeated", path, before=keys or tool, target=target))
            continue
        seen.add(name)
        if name != tool.name:
            fixes.append(make("tool_name_rewritten", path, target=target, detail=f"{tool.name} -> {name}"))
        inner = _inner(keys)
        extras = sorted((keys.keys() | inner.keys()) - _READ_KEYS)
        if extras:
            fixes.append(make("field_dropped", path, before=keys, target=target, detail=", ".join(extras)))
        strict = inner.get("strict", keys.get("strict", UNSET))
        written.append(form(Function(name, tool.input_schema, tool.description, strict)))
    return written


def write_choice(value: Raw, named: Callable[[str], Any]) -> tuple[Any, bool | None]:
    """The tool choice in OpenAI's words, and whether calls may be parallel where the choice said so.

    ``named`` is how the API names one tool. A choice that is OpenAI's own already stays.
    """
    choice = msgspec.json.decode(value)
    if isinstance(choice, str):
        return _CHOICES.get(choice, choice), None
    if not isinstance(choice, dict):
        return choice, None
    disabled = choice.get("disable_parallel_tool_use")
    parallel = not disabled if isinstance(disabled, bool) else None
    kind = choice.get("type")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    if kind in {"tool", "function"} and isinstance(name, str):
        return named(legal_name(name, LONGEST_NAME)), parallel
    return _CHOICES.get(kind, choice) if isinstance(kind, str) else choice, parallel


def _inner(keys: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("function", "toolSpec"):
        if key in keys:
            return msgspec.json.decode(keys[key], type=dict[str, Any])
    return {}
