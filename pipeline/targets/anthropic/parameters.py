"""A Messages request without its messages: model, system, tools and the other parameters, in that order.

What another provider has under another name, with the same meaning, is translated; that is constant and makes no fix.
What the API has no name for is left out, and recorded. Parameters that are all Anthropic's stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw

from pipeline.fixes import Fix, make
from pipeline.history.pieces import Piece
from pipeline.model import Tool, on_the_wire
from pipeline.targets.base import Setting, WrittenHead
from pipeline.targets.fitting import system_rows
from pipeline.targets.marks import MOST_MARKS, POINT, is_mark, mark_of, raw_unmarked
from pipeline.targets.names import Params, clamped, declared_tools, legal_name, read_choice, sort_params
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
    values = {name: value for name, value in given.items() if name not in _ELSEWHERE}
    params = Params(values) if values.keys() <= PARAMETERS else sort_params(values)
    choice = params.values.get("tool_choice")
    written = None if choice is None else _choice(choice, longest_name)
    places = {name: name for name in params.values if name in PARAMETERS and (name != "tool_choice" or written)}
    kept = clamped(params, _BOUNDS, target, fixes).at_places(places, target, fixes)
    return kept if written is None else kept | {"tool_choice": written}


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
    texts = [on_the_wire(piece.block) for piece in system_rows(rows, _NAME, fixes)]
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
    written: list[dict[str, Any]] = []
    for each in declared_tools(tools, _NAME, lambda name: legal_name(name, _LONGEST_NAME), _is_own, fixes):
        tool, given = each.tool, each.given
        if each.own and POINT in given:
            mark = mark_of(tool.raw)  # type: ignore[arg-type]  # it is set where there are keys
            if mark is None or not written:
                fixes.append(make("cache_mark_dropped", each.path, target=_NAME))
            else:
                written[-1]["cache_control"] = mark
        elif each.own:
            written.append(given)
        elif "input_schema" in given:
            changed = {"name": tool.name, "input_schema": tool.input_schema}
            written.append(given if each.same else given | changed)
        else:
            # One in another shape, or in none, with what of it this API has a place for.
            each.note_unread(_NAME, fixes, *_OWN_KEYS)
            extras = {key: each.members[key] for key in _OWN_KEYS if bytes(each.members.get(key, b"null")) != b"null"}
            written.append({"name": tool.name, **each.described, "input_schema": tool.input_schema, **extras})
    return written


def _is_own(tool: Tool, keys: Mapping[str, Raw]) -> bool:
    """Whether a tool is the provider's own: Anthropic's name a type that no other has."""
    if bytes(tool.input_schema) != b"null":
        return False
    if POINT in keys or not keys.keys().isdisjoint(("name", "function", "toolSpec")):
        return True
    kind = msgspec.json.decode(keys["type"]) if "type" in keys else None
    return isinstance(kind, str) and kind not in _FOREIGN
