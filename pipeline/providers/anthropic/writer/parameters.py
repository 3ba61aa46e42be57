"""A Messages request without its messages: model, system, tools and the other parameters, in that order.

Another provider's name with the same meaning is translated; that is constant and makes no fix. A parameter without a
name in the API is left out with a fix. Anthropic's own parameters stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, structs

from reknit.pipeline.history.pieces import POINT, TrackedBlock
from reknit.pipeline.model import Tool, on_the_wire
from reknit.pipeline.options import HeadOptions
from reknit.pipeline.providers.anthropic.writer.lifetimes import shortened
from reknit.pipeline.providers.anthropic.writer.models import fit_to_claude, fit_values
from reknit.pipeline.providers.anthropic.writer.searches import KnownTools, known_tools
from reknit.pipeline.providers.anthropic.writer.settings import own_form, write_form, write_reasoning
from reknit.pipeline.targets import Setting, legal_name
from reknit.pipeline.targets.fitting import MOST_MARKS, is_mark, mark_of, raw_unmarked
from reknit.pipeline.targets.head import (
    WRAPPERS,
    Declared,
    HeadWriter,
    Params,
    WrittenHead,
    members_of,
    read_choice,
    sort_params,
)
from reknit.pipeline.targets.schemas import COMBINATORS
from reknit.pipeline.targets.settings import GROUPS, OwnSettings, mapped
from reknit.pipeline.targets.strict import StrictTools, is_strict

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

_encode = msgspec.json.Encoder().encode

# Names in a history may be longer than those of defined tools; the shorter limit keeps the two the same (ANT-13c).
_LONGEST_NAME: Final = 128
# Tools that other providers run, by the type they name.
_FOREIGN: Final = frozenset(
    {"web_search_preview", "file_search", "code_interpreter", "computer_use_preview", "image_generation", "local_shell"}
)
# Other members of a tool in another shape that this API has under the same name.
_OWN_KEYS: Final = ("strict", "cache_control")


def tool_name(name: str) -> str:
    return legal_name(name, _LONGEST_NAME)


def write_head(setting: Setting, system: Sequence[TrackedBlock]) -> WrittenHead:
    writer = HeadWriter(_HEAD, setting)
    keys: dict[str, Raw] = {}
    if setting.model is not None:
        keys["model"] = Raw(_encode(setting.model))
    prompt = _system(writer, system)
    if prompt is not None:
        keys["system"] = prompt
    tools = _tools(writer)
    if tools:
        keys["tools"] = Raw(_encode(tools))
    keys |= _params(writer)
    # Anthropic reads tools before the system prompt, so breakpoints are counted in that order.
    marks = 0
    for key in ("tools", "system"):
        if key in keys:
            keys[key], marks = _limited(keys[key], key, marks, writer)
    short = False
    for key in ("tools", "system"):
        if key in keys and writer.makes("cache_ttl_shortened"):
            keys[key], changed, short = shortened(keys[key], short=short)
            for at in changed:
                writer.note_fix("cache_ttl_shortened", f"{key}.{at}")
    return WrittenHead(_encode(keys), writer.fixes, marks, short)


def _params(writer: HeadWriter) -> dict[str, Raw]:
    values = {name: value for name, value in writer.setting.params.items() if name not in _HEAD.elsewhere}
    params = Params(values)
    if not values.keys() <= PARAMETERS:
        params = mapped(writer, sort_params(values), _own_settings(writer.setting, values))
    params = _with_user(own_form(writer, params))
    choice = params.values.get("tool_choice")
    written = None if choice is None else _choice(choice)
    parallel = params.values.get("parallel_tool_calls")
    single = None if parallel is None or not writer.setting.tools else _one_at_a_time(written or _AUTO, parallel)
    if single is not None:
        written, params = single, params.said_as("parallel_tool_calls", {})
    places = params.each_of(PARAMETERS if written else PARAMETERS - {"tool_choice"})
    kept = writer.placed(writer.clamped(params), places)
    kept = fit_to_claude(writer, params, fit_values(writer, params, kept))
    return kept if written is None else kept | {"tool_choice": written}


def _with_user(params: Params) -> Params:
    """The parameters with OpenAI's name of the user as the one member of metadata that the API has."""
    name = next((name for name in ("user", "safety_identifier") if name in params.values), "")
    metadata = members_of(params.values.get("metadata", Raw(b"{}")))
    if not name or metadata is None or "user_id" in metadata or not bytes(params.values[name]).startswith(b'"'):
        return params
    written = Raw(_encode({**metadata, "user_id": params.values[name]}))
    if "metadata" not in params.values:
        return params.said_as(name, {"metadata": written})
    rest = params.said_as(name, {})
    return structs.replace(rest, values=rest.values | {"metadata": written})


def _own_settings(setting: Setting, values: Mapping[str, Raw]) -> OwnSettings:
    """The settings of Claude, less those that the request has in Claude's terms."""
    config = members_of(values.get("output_config", Raw(b"{}"))) or {}
    return OwnSettings(
        groups=GROUPS - {"output_config"},
        answers=frozenset({"output_format", *(["output_config"] if "format" in config else [])}),
        reasons=frozenset({"thinking", *(["output_config"] if "effort" in config else [])}),
        form=lambda form: write_form(form, setting.model),
        reasoning=lambda reasoning: write_reasoning(reasoning, setting.model, sort_params(values).values),
    )


def thinking_of(setting: Setting) -> bytes:
    """The parameter ``thinking`` that a request has, be it another provider's setting."""
    given = setting.params.get("thinking")
    if given is not None or setting.params.keys() <= PARAMETERS:
        return bytes(given or b"null")
    return bytes(_params(HeadWriter(_HEAD, setting)).get("thinking", b"null"))


_AUTO: Final = Raw(b'{"type":"auto"}')


def _one_at_a_time(choice: Raw, parallel: Raw) -> Raw | None:
    """A choice that also says whether calls may be parallel; None where that has no meaning."""
    allowed, given = msgspec.json.decode(parallel), msgspec.json.decode(choice)
    if not isinstance(allowed, bool) or not isinstance(given, dict) or given.get("type") == "none":
        return None
    return Raw(_encode({**given, "disable_parallel_tool_use": not allowed}))


def _choice(value: Raw) -> Raw | None:
    """A choice of a tool in the API's words, naming the tool as the tools do; None where it is no choice."""
    if bytes(value) == b"null":
        return value
    choice = read_choice(value)
    if choice is None:
        return None
    given: Any = msgspec.json.decode(value)
    own = isinstance(given, dict) and given.get("type") == choice.kind and not choice.spelt
    named = {"name": tool_name(choice.name)} if choice.kind == "tool" else {}
    if own and given == given | named:
        return value
    return Raw(_encode((given if own else {"type": choice.kind}) | named))


def _limited(value: Raw, path: str, marks: int, writer: HeadWriter) -> tuple[Raw, int]:
    """Return a list with as many of its breakpoints as fit after ``marks``, and the number of breakpoints then.

    The list is only rewritten if a breakpoint is removed.
    """
    if b'"cache_control"' not in bytes(value) or bytes(value)[:1] != b"[":
        return value, marks
    items = msgspec.json.decode(value, type=list[Raw])
    taken = False
    for at, item in enumerate(items):
        bare, count = raw_unmarked(item)
        mark = msgspec.json.decode(item, type=dict[str, Raw]).get("cache_control")
        is_bad = mark is not None and not is_mark(mark)
        if is_bad or marks + count > MOST_MARKS:
            items[at], taken = bare, True
            writer.note_fix("cache_mark_dropped" if is_bad else "cache_control_dropped", f"{path}.{at}")
        else:
            marks += count
    return Raw(_encode(items)) if taken else value, marks


def _system(writer: HeadWriter, rows: Sequence[TrackedBlock]) -> Raw | None:
    given = writer.setting.system
    texts = [on_the_wire(piece.block) for piece in writer.system_rows(rows)]
    if isinstance(given, str) and not texts:
        return Raw(_encode(given))
    blocks = _system_blocks(writer)
    return Raw(_encode([*blocks, *texts])) if blocks or texts else None


def _system_blocks(writer: HeadWriter) -> list[Any]:
    """The blocks of a system prompt; the breakpoint of one that says nothing goes to the one before it."""
    blocks: list[dict[str, Any]] = []
    for block in writer.prompt_texts():
        mark = block.keys.get("cache_control")
        if block.text:
            blocks.append({"type": "text", **block.keys, "text": block.text})
            continue
        if mark is not None and blocks:
            blocks[-1].setdefault("cache_control", mark)
    return blocks


def _tools(writer: HeadWriter) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    known = known_tools(writer.setting)
    for each in _fitted_tools(writer):
        tool, given = each.tool, each.given
        if each.own and POINT in given:
            mark = mark_of(tool.raw)  # type: ignore[arg-type]  # it is set where there are keys
            if mark is None or not written:
                writer.note_fix("cache_mark_dropped", each.path)
            else:
                written[-1]["cache_control"] = mark
        elif each.own and _is_lost_reference(given, known):
            writer.note_fix("tool_reference_dropped", each.path, before=given, detail="tools")
        elif each.own:
            written.append(given)
        elif "input_schema" in given:
            changed = {"name": tool.name, "input_schema": tool.input_schema}
            written.append(given if each.same else given | changed)
        else:
            # One in another shape, or in none, with what of it this API has a place for.
            writer.note_unread(each, *_OWN_KEYS)
            extras = {key: each.members[key] for key in _OWN_KEYS if bytes(each.members.get(key, b"null")) != b"null"}
            written.append({"name": tool.name, **each.described, "input_schema": tool.input_schema, **extras})
    return written


def _fitted_tools(writer: HeadWriter) -> Iterator[Declared]:
    """Yield the tools; one that is strict and that the provider does not compile, or beyond the most, without it."""
    strict_tools = StrictTools()
    for each in writer.declared_tools():
        strict = None if each.own else each.members.get("strict")
        kept = not is_strict(strict) or writer.stays_strict(each, strict, strict_tools.take)
        yield each if kept else _not_strict(each)


def _not_strict(tool: Declared) -> Declared:
    """Return a tool without ``strict``, in any shape."""
    given = {key: value for key, value in tool.given.items() if key != "strict"}
    for wrapper in WRAPPERS:
        if wrapper in given:
            inner = msgspec.json.decode(given[wrapper], type=dict[str, Raw])
            given[wrapper] = Raw(_encode({key: value for key, value in inner.items() if key != "strict"}))
    return structs.replace(tool, given=given)


def _is_lost_reference(given: Mapping[str, Raw], known: KnownTools) -> bool:
    """Return True for a reference in the place of a tool whose tool is not declared (ANT-48)."""
    if bytes(given.get("type", b"")) != b'"tool_reference"' or "tool_name" not in given:
        return False
    return not known.written_name(msgspec.json.decode(given["tool_name"]))


def _is_own(tool: Tool, keys: Mapping[str, Raw]) -> bool:
    """Return True if a tool is the provider's own: Anthropic's name a type that no other has."""
    if bytes(tool.input_schema) != b"null":
        return False
    if POINT in keys or not keys.keys().isdisjoint(("name", "function", "toolSpec")):
        return True
    kind = msgspec.json.decode(keys["type"]) if "type" in keys else None
    return isinstance(kind, str) and kind not in _FOREIGN


_HEAD: Final = HeadOptions(
    target="anthropic",
    elsewhere=frozenset({"messages", "model", "system", "tools"}),
    # `temperature: range: 0..1` (ANT-39); OpenAI's and Gemini's goes up to 2.
    bounds={"temperature": (0, 1)},
    tool_name=tool_name,
    is_own=_is_own,
    schema_members=COMBINATORS,
)
