"""The members of a document besides its messages, in any of the shapes: system, tools, model and parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.fields import Fields, Notes, as_list, as_object, as_string
from reknit.pipeline.history.readers.rawjson import check_nesting, compact, starts_with, wrong_type
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.model import Tool

_NO_SCHEMA: Final = Raw(b'{"type":"object","properties":{}}')
_NULL: Final = Raw(b"null")
# The function form of a tool that takes free text.
_FREE_TEXT: Final = Raw(b'{"type":"object","properties":{"input":{"type":"string"}},"required":["input"]}')
_CONVERSE_TOOLS: Final = frozenset({"tools", "toolChoice"})
# Gemini's names of a list of functions, and what its schemas and its choice among tools are made of.
_DECLARATIONS: Final = ("functionDeclarations", "function_declarations")
DECLARED_SCHEMAS: Final = frozenset({"parametersJsonSchema", "parameters_json_schema"})
"""Where a declaration has its schema as JSON Schema; ``parameters`` is of the API's own dialect."""
# The types of that dialect, in the order of their numbers, which begin at 1.
_TYPES: Final = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")
_INNER_SCHEMAS: Final = frozenset({"items", "anyOf", "allOf", "oneOf", "not", "prefixItems", "additionalProperties"})
# Limits that the API writes as text, because they are 64-bit integers.
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
# The member with a choice's original mode, if that is not in capitals; the API accepts it (recorded).
SPELT: Final = "mode"
_CHOICES: Final = {"AUTO": "auto", "ANY": "any", "NONE": "none"}
_CACHE_MARK: Final = Raw(b'{"type":"ephemeral"}')


class _PlainTool(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool with canonical members only."""

    name: str
    input_schema: Raw
    description: str | UnsetType = UNSET


class DocumentHead(Struct, frozen=True, kw_only=True):
    """A document without its messages, in canonical terms; parameters stay as they are written."""

    system: str | Raw | None = None
    tools: tuple[Tool, ...] = ()
    model: str | None = None
    params: dict[str, Raw] = {}


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    thought: Literal[False] | None = None


class _Instruction(Struct, frozen=True, forbid_unknown_fields=True):
    """A content, or a single part in the place of one."""

    parts: list[_Part] | _Part | None = None
    role: str | None = None
    text: str | None = None

    @property
    def listed(self) -> list[_Part]:
        if self.parts is None:
            return [] if self.text is None else [_Part(self.text)]
        return self.parts if isinstance(self.parts, list) else [self.parts]


class _Calling(Struct, frozen=True, forbid_unknown_fields=True):
    mode: str = "AUTO"
    names: list[str] = msgspec.field(default_factory=list, name="allowedFunctionNames")


class _Config(Struct, frozen=True, forbid_unknown_fields=True):
    calling: _Calling = msgspec.field(name="functionCallingConfig")


_PLAIN_TOOL: Final = msgspec.json.Decoder(_PlainTool)
_INSTRUCTION: Final[msgspec.json.Decoder[_Instruction | list[_Part]]] = msgspec.json.Decoder(_Instruction | list[_Part])
_CONFIG: Final = msgspec.json.Decoder(_Config)


def read_head(keys: dict[str, Raw], notes: Notes) -> DocumentHead:
    """Read a document's keys other than ``messages``; a key other than system, tools and model is a parameter.

    ``params`` holds further parameters, which take precedence over the document's keys.

    Raises:
        InputError: a value of the wrong type, or nested too deeply.
    """
    if not keys:
        return DocumentHead()
    for key, value in keys.items():
        check_nesting(value, key)
    rest = {key: value for key, value in keys.items() if not starts_with(value, b"n")}
    system = _system_of(rest)
    model = rest.pop("model", None) or rest.pop("modelId", None)
    tools = _tool_items(rest, notes)
    given = rest.pop("params", None)
    return DocumentHead(
        system=None if system is None else _read_system(system, notes),
        tools=tuple(_read_tool(value, path, notes, came) for value, path, came in tools),
        model=None if model is None else as_string(model, "model"),
        params=rest if given is None else rest | as_object(given, "params"),
    )


def _system_of(rest: dict[str, Raw]) -> Raw | None:
    """Return the system prompt under any shape's name; one without a canonical form stays a parameter."""
    for key in ("system", "instructions", "systemInstruction", "system_instruction"):
        value = rest.get(key)
        if value is None:
            continue
        if key in ("systemInstruction", "system_instruction") and not starts_with(value, b'"'):
            value = _texts_of_content(value)
        if value is not None and (key == "system" or starts_with(value, b'"') or starts_with(value, b"[")):
            del rest[key]
            return value
    return None


def _texts_of_content(content: Raw) -> Raw | None:
    """Gemini's system instruction as text blocks; None where it has anything else in it.

    The API also takes one part where a list of them belongs, and a part or a list of parts for the content.
    """
    given = decoded(_INSTRUCTION, content)
    if given is None:
        return None
    parts = given if isinstance(given, list) else given.listed
    return Raw(msgspec.json.encode([{"type": "text", "text": part.text} for part in parts]))


def _read_system(value: Raw, notes: Notes) -> str | Raw:
    """Return a string, or a list of text blocks; Converse's untyped blocks and bare strings become text blocks.

    A text that is not a string stays in its block: each target repairs it, with a fix.
    """
    if starts_with(value, b'"'):
        return as_string(value, "system")
    if starts_with(value, b"{"):
        notes.add_fix("content_wrapped", "system")
        value = Raw(b"[%b]" % bytes(value))
    elif not starts_with(value, b"["):
        raise wrong_type("system", "a string or a list of blocks", value)
    items = as_list(value, "system")
    if all(starts_with(item, b"{") and "type" in as_object(item, "system") for item in items):
        return value
    blocks: list[dict[str, object]] = []
    for i, item in enumerate(items):
        _add_system_block(blocks, item, f"system.{i}")
    return Raw(msgspec.json.encode(blocks))


def _add_system_block(blocks: list[dict[str, object]], item: Raw, path: str) -> None:
    if starts_with(item, b'"'):
        blocks.append({"type": "text", "text": as_string(item, path)})
        return
    keys = as_object(item, path)
    if "text" in keys and "type" not in keys:
        blocks.append({"type": "text", **keys})
    elif "cachePoint" in keys and blocks:
        # Converse marks the end of a cached prefix by a block of its own, the canonical form at its last block.
        ttl = as_object(keys["cachePoint"], f"{path}.cachePoint").get("ttl")
        blocks[-1]["cache_control"] = _CACHE_MARK if ttl is None else {"type": "ephemeral", "ttl": ttl}
    else:
        blocks.append(dict(keys))


def _tool_items(rest: dict[str, Raw], notes: Notes) -> list[tuple[Raw, str, Raw | UnsetType]]:
    """Return the tools of ``tools``, of the older ``functions`` and of Converse's ``toolConfig``, with their places.

    A declaration of Gemini's is read in common terms, and its original is returned with it.
    """
    found: list[tuple[Raw, str, Raw | UnsetType]] = []
    for key in ("tools", "functions"):
        value = rest.pop(key, None)
        if value is not None:
            for i, item in enumerate([value] if _declares_functions(value) else as_list(value, key)):
                if key == "functions" and starts_with(item, b"{"):
                    # OpenAI's older form, in whose words the model answers.
                    item = Raw(b'{"functions":%b}' % bytes(item))  # noqa: PLW2901  it is another from here on
                found += _single_tools(item, f"{key}.{i}")
    value = rest.get("toolConfig")
    if value is not None and (_CONVERSE_TOOLS.isdisjoint(as_object(value, "toolConfig"))):
        chosen = _choice_of(value)
        if chosen is not None:
            rest["tool_choice"] = chosen
            del rest["toolConfig"]
    elif value is not None:
        del rest["toolConfig"]
        config = Fields(value, "toolConfig", notes)
        items = config.take("tools")
        if items is not None:
            listed = enumerate(as_list(items, "toolConfig.tools"))
            found += [(item, f"toolConfig.tools.{i}", UNSET) for i, item in listed]
        choice = config.take_object("toolChoice")
        if choice is not None:
            rest["tool_choice"] = _tool_choice(choice)
        config.drop_rest()
    return found


def _tool_choice(fields: Fields) -> Raw:
    """Converse's tool choice in canonical terms: its only key says which."""
    tool = fields.take_object("tool")
    if tool is not None:
        return Raw(msgspec.json.encode({"type": "tool", "name": tool.take_text("name")}))
    return Raw(msgspec.json.encode({"type": "any" if "any" in fields else "auto"}))


def _read_tool(value: Raw, path: str, notes: Notes, came: Raw | UnsetType = UNSET) -> Tool:
    """A tool of any shape; ``came`` is what it was where ``value`` says it in other words.

    ``raw`` is the whole of a tool that has more than a name, a description and a schema, or other words for them, for
    its issuer to take back. A provider's own tool, which has no schema, has null for one.
    """
    if not starts_with(value, b"{"):
        raise wrong_type(path, "a tool", value)
    plain = _plain_tool(value)
    if plain is not None:
        return plain
    fields = Fields(value, path, notes)
    if "cachePoint" in fields:
        return Tool(name="", input_schema=_NULL, raw=value)
    wrapped = next((name for name in ("function", "toolSpec", "custom", "functions") if name in fields), "")
    inner = fields.take_object(wrapped) if wrapped else None
    inner = fields if inner is None else inner
    kind = fields.take_string("type")
    name, description, schema = inner.take_string("name"), inner.take_string("description"), _schema(inner)
    if (schema is None or name is None) and (kind not in (None, "function", "custom") or name is None):
        if kind is None and name is None and (schema is not None or len(fields.names()) != 1):
            raise InputError("wrong_type", "expected a tool with a name", path=path)
        return Tool(name=name or kind or "", input_schema=_NULL, raw=value)
    if schema is None and kind == "custom":
        schema, is_own = _FREE_TEXT, True
    else:
        # Responses has a function's name next to its type, and distinguishes an absent ``strict`` from a false one.
        is_own = kind == "function" and inner is fields
    extras = inner.names() + fields.names()
    return Tool(
        name=name or "",
        description=UNSET if description is None else description,
        input_schema=_NO_SCHEMA if schema is None else schema,
        raw=value if came is UNSET and (extras or is_own or wrapped == "functions") else came,
    )


def _plain_tool(value: Raw) -> Tool | None:
    """A tool that is in the canonical form already, or None."""
    tool = decoded(_PLAIN_TOOL, value)
    if tool is None or not starts_with(tool.input_schema, b"{"):
        return None
    return Tool(name=tool.name, description=tool.description, input_schema=Raw(compact(bytes(tool.input_schema))))


def _schema(fields: Fields) -> Raw | None:
    """The schema, under the name that the shape has for it; Converse wraps it once more."""
    for key in ("input_schema", "parameters", "inputSchema"):
        value = fields.take(key)
        if value is None:
            continue
        if key == "inputSchema" and starts_with(value, b"{"):
            value = as_object(value, fields.at(key)).get("json", value)
        return Raw(compact(bytes(value)))
    return None


def _declares_functions(value: Raw) -> bool:
    """Return True if a value is one entry of ``tools`` by itself, which the API takes for a list of one."""
    return starts_with(value, b"{") and not as_object(value, "tools").keys().isdisjoint(_DECLARATIONS)


def _single_tools(item: Raw, path: str) -> Iterator[tuple[Raw, str, Raw | UnsetType]]:
    """Yield the tools in one entry of ``tools``: each declared function, then the other members.

    Each has its place, and a declaration has its original, which is written back unchanged.
    """
    if not starts_with(item, b"{"):
        yield item, path, UNSET
        return
    keys = {key: value for key, value in as_object(item, path).items() if not starts_with(value, b"n")}
    for name in _DECLARATIONS:
        if name not in keys:
            continue
        declared = as_list(keys.pop(name), f"{path}.{name}")
        for at, declaration in enumerate(declared):
            place = f"{path}.{name}.{at}"
            yield Raw(msgspec.json.encode(_function(as_object(declaration, place)))), place, declaration
        if not keys:
            return
        item = Raw(msgspec.json.encode(keys))
    yield item, path, UNSET


def _choice_of(config: Raw) -> Raw | None:
    """A ``toolConfig`` as a tool choice; None for one that says more than the other shapes can."""
    given = decoded(_CONFIG, config)
    if given is None:
        return None
    calling = given.calling
    kind = _CHOICES.get(calling.mode.upper())
    if kind is None:
        return None
    spelt = {} if calling.mode.isupper() else {SPELT: calling.mode}
    if not calling.names:
        return Raw(msgspec.json.encode({"type": kind, **spelt}))
    if kind != "any" or len(calling.names) > 1:
        return None
    return Raw(msgspec.json.encode({"type": "tool", "name": calling.names[0], **spelt}))


def _function(keys: dict[str, Raw]) -> dict[str, Any]:
    """A declaration with its schema, in whichever of the two dialects, as JSON Schema."""
    found: dict[str, Any] = {key: value for key, value in keys.items() if key not in DECLARED_SCHEMAS}
    own = found.get("parameters")
    for name in DECLARED_SCHEMAS & keys.keys():
        found["parameters"] = keys[name]
    if own is not None and found["parameters"] is own:
        found["parameters"] = json_schema(msgspec.json.decode(own))
    return found


def json_schema(schema: Any) -> Any:  # noqa: ANN401  any JSON
    """A schema of the API's own dialect, which has its types in capitals or as numbers, as JSON Schema."""
    if isinstance(schema, list):
        return [json_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, dict):
            out[key] = {name: json_schema(inner) for name, inner in value.items()}
        elif key in _INNER_SCHEMAS:
            out[key] = json_schema(value)
        elif key == "type":
            out[key] = [_json_type(each) for each in value] if isinstance(value, list) else _json_type(value)
        elif key in _COUNTS and isinstance(value, str) and value.isdecimal():
            out[key] = int(value)
        else:
            out[key] = value
    if out.get("nullable") is True and isinstance(out.get("type"), str):
        del out["nullable"]
        out["type"] = [out["type"], "null"]
    return out


def _json_type(name: Any) -> Any:  # noqa: ANN401  any JSON
    if isinstance(name, int) and not isinstance(name, bool) and 1 <= name <= len(_TYPES):
        name = _TYPES[name - 1]
    return name.lower() if isinstance(name, str) and name in _TYPES else name
