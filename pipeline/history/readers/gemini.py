"""Gemini's shape: contents of parts, each part named by its member; a signature stands on the part that it seals.

The canonical form has signatures on reasoning only. One on any other part becomes a thinking block without words in
front of that part, whose place in the input (``….thoughtSignature``) says where it belongs. Calls need no ids here: one
without gets an id that is made of its function's name, as its response names the function too. Tools and the choice
among them are read in terms that the other shapes share.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from pipeline.history.ids import made_id
from pipeline.history.readers.anthropic import INNER, Inner, Placed, read_content
from pipeline.history.readers.fields import (
    EMPTY_OBJECT,
    Fields,
    Notes,
    as_list,
    as_object,
    as_string,
    read_input,
    unknown_role,
)
from pipeline.history.readers.rawjson import compact, starts_with
from pipeline.model import Block, Document, Image, Issuer, Role, Text, Thinking, ToolResult, ToolUse, Turn, Unknown

ISSUER: Final = Issuer(provider="gemini")
UNSIGNED: Final = Issuer(provider="skip_thought_signature_validator")
"""Who wrote a call that has the documented placeholder for a signature: some model that signs nothing."""

_UNDERSCORE: Final = re.compile("_([a-z])")
SIGNATURE: Final = "thoughtSignature"
_ROLES: Final[dict[str, Role]] = {"model": "assistant", "user": "user", "function": "user"}
# The members of a part, in both spellings that the API takes.
_MEMBERS: Final = {
    "functionCall": "functionCall",
    "function_call": "functionCall",
    "functionResponse": "functionResponse",
    "function_response": "functionResponse",
    "inlineData": "inlineData",
    "inline_data": "inlineData",
    "fileData": "fileData",
    "file_data": "fileData",
    "executableCode": "executableCode",
    "executable_code": "executableCode",
    "codeExecutionResult": "codeExecutionResult",
    "code_execution_result": "codeExecutionResult",
    "toolCall": "toolCall",
    "toolResponse": "toolResponse",
}


def read(fields: Fields, index: int) -> Turn:
    """The turn of one content.

    Raises:
        InputError: no such role, or a field of the wrong type.
    """
    name = fields.take_string("role") or "user"
    role = _ROLES.get(name)
    if role is None:
        raise unknown_role(name, fields.at("role"), "user, model or function")
    parts = _Parts()
    placed = read_content(fields.take("parts"), fields.at("parts"), fields.notes, parts.read)
    blocks, paths = tuple(block for block, _ in placed), tuple(path for _, path in placed)
    return Turn(role=role, blocks=blocks, index=index, paths=paths, root="contents", ids_made=parts.ids_made)


class _Parts:
    """The parts of one content. ``ids_made`` tells whether a call or a response came without an id."""

    def __init__(self) -> None:
        self.ids_made = False

    def read(self, value: Raw, path: str, notes: Notes) -> list[Placed]:
        """One part as its block, behind the signature that stands on it."""
        attempt = notes.attempt()
        fields = Fields(value, path, attempt)
        thought = fields.take_flag("thought")
        signature = fields.take_string(SIGNATURE) or fields.take_string("thought_signature") or ""
        block = self._block(fields, thought=thought)
        if isinstance(block, ToolUse) and signature == UNSIGNED.provider:
            block, signature = msgspec.structs.replace(block, issuer=UNSIGNED), ""
        sealed = thought and signature and isinstance(block, Text)
        if block is None or sealed or (fields.names() and isinstance(block, (Image, Document))):
            # What the model has no block for, such as a seal on no words at all, or has members beside its own such as
            # a video's offsets, is kept whole.
            kind = next((_MEMBERS[name] for name in as_object(value, path) if name in _MEMBERS), "")
            return [(Unknown(kind=kind, raw=_spelt_alike(value, path), issuer=ISSUER), path)]
        fields.drop_rest()
        notes.fixes += attempt.fixes
        if not signature:
            return [(block, path)]
        if isinstance(block, (Text, Thinking)) and not _words(block):
            return [(Thinking(thinking="", signature=signature, issuer=ISSUER), path)]
        return [(Thinking(thinking="", signature=signature, issuer=ISSUER), f"{path}.{SIGNATURE}"), (block, path)]

    def _block(self, fields: Fields, *, thought: bool) -> Block | None:
        name = next((name for name in fields.names() if name == "text" or name in _MEMBERS), None)
        if name is None:
            return Text(text="") if not fields.names() else None
        if name == "text":
            text = fields.take_text("text")
            return Thinking(thinking=text, issuer=ISSUER) if thought else Text(text=text)
        member = _MEMBERS[name]
        value = fields.peek(name)
        if value is None or not starts_with(value, b"{"):
            return None
        inner = Fields(value, fields.at(name), fields.notes)
        if member == "functionCall":
            fields.ignore(name)
            return self._call(inner)
        if member == "functionResponse":
            fields.ignore(name)
            return self._response(inner)
        media = _media(inner) if member == "inlineData" else None
        if media is not None:
            fields.ignore(name)
        return media

    def _call(self, fields: Fields) -> ToolUse:
        name = fields.take_text("name")
        call_id = self._id(fields, name)
        # A function without parameters is called without arguments.
        given = fields.take("args")
        call_input, incomplete = (
            (EMPTY_OBJECT, False) if given is None else read_input(given, fields.at("args"), fields.notes)
        )
        fields.drop_rest()
        return ToolUse(id=call_id, name=name, input=call_input, incomplete=incomplete)

    def _response(self, fields: Fields) -> ToolResult:
        call_id = self._id(fields, fields.take_text("name"))
        value, parts = fields.take("response"), fields.take("parts")
        text, is_error, as_given = _said(value)
        content: str | list[Inner] = text
        if parts is not None:
            path = fields.at("parts")
            content = [Text(text=text)] if text else []
            for at, item in enumerate(as_list(parts, path)):
                read = self.read(item, f"{path}.{at}", fields.notes)
                content += [block for block, _ in read if isinstance(block, INNER)]
        fields.drop_rest()
        return ToolResult(tool_use_id=call_id, content=content, is_error=is_error, issuer=ISSUER if as_given else UNSET)

    def _id(self, fields: Fields, name: str) -> str:
        call_id = fields.take_string("id")
        if call_id:
            return call_id
        self.ids_made = True
        return made_id(name)


def _spelt_alike(part: Raw, path: str) -> Raw:
    """A part with its own names and its members' in the first of the API's two spellings."""
    keys = as_object(part, path)
    inner = {name: as_object(value, path) for name, value in keys.items() if starts_with(value, b"{")}
    if not any("_" in name for name in (*keys, *(name for given in inner.values() for name in given))):
        return part
    spelt: dict[str, object] = {_camel(name): value for name, value in keys.items()}
    spelt |= {_camel(name): {_camel(key): value for key, value in given.items()} for name, given in inner.items()}
    return Raw(msgspec.json.encode(spelt))


def _camel(name: str) -> str:
    return _UNDERSCORE.sub(lambda found: found[1].upper(), name)


def _words(block: Text | Thinking) -> str:
    return (block.text if isinstance(block, Text) else block.thinking).strip()


def _said(response: Raw | None) -> tuple[str, bool, bool]:
    """A response's text, whether it is an error's, and whether the text is the JSON of the object as it was given.

    A text in an object of one member, ``result`` or ``error``, is how text is said here.
    """
    if response is None:
        return "", False, False
    if starts_with(response, b"{"):
        keys = as_object(response, "")
        if len(keys) == 1:
            key, value = next(iter(keys.items()))
            if key in ("result", "error") and starts_with(value, b'"'):
                return as_string(value, ""), key == "error", False
    return compact(bytes(response)).decode(), False, True


def _media(fields: Fields) -> Image | Document | None:
    """Inline images, and documents of text and PDF; other data has no canonical form."""
    media_type = fields.take_string("mimeType") or fields.take_string("mime_type") or ""
    data = fields.take_string("data")
    if data is None or fields.names():
        return None
    source = Raw(msgspec.json.encode({"type": "base64", "media_type": media_type, "data": data}))
    if media_type.startswith("image/"):
        return Image(source=source)
    return Document(source=source) if media_type.startswith("text/") or media_type == "application/pdf" else None


_DECLARATIONS: Final = ("functionDeclarations", "function_declarations")
DECLARED_SCHEMAS: Final = frozenset({"parametersJsonSchema", "parameters_json_schema"})
"""Where a declaration has its schema as JSON Schema; ``parameters`` is of the API's own dialect."""
# The types of that dialect, in the order of their numbers, which begin at 1.
_TYPES: Final = ("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL")
_INNER_SCHEMAS: Final = frozenset({"items", "anyOf", "allOf", "oneOf", "not", "prefixItems", "additionalProperties"})
# Limits that the API writes as text, because they are 64-bit integers.
_COUNTS: Final = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
_CHOICES: Final = {"AUTO": "auto", "ANY": "any", "NONE": "none"}


def declares_functions(value: Raw) -> bool:
    """Whether a value is one entry of ``tools`` by itself, which the API takes for a list of one."""
    return starts_with(value, b"{") and not as_object(value, "tools").keys().isdisjoint(_DECLARATIONS)


def single_tools(item: Raw, path: str) -> Iterator[tuple[Raw, str, Raw | UnsetType]]:
    """The tools in one entry of ``tools``: each declared function, then what else it holds.

    With the place of each, and a declaration as it came, which goes back as it is.
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


def choice_of(config: Raw) -> Raw | None:
    """A ``toolConfig`` as a tool choice; None for one that says more than the other shapes can."""
    try:
        calling = msgspec.json.decode(config, type=_Config).calling
    except msgspec.ValidationError:
        return None
    kind = _CHOICES.get(calling.mode.upper())
    if kind is None:
        return None
    if not calling.names:
        return Raw(msgspec.json.encode({"type": kind}))
    if kind != "any" or len(calling.names) > 1:
        return None
    return Raw(msgspec.json.encode({"type": "tool", "name": calling.names[0]}))


class _Calling(Struct, frozen=True, forbid_unknown_fields=True):
    mode: str = "AUTO"
    names: list[str] = msgspec.field(default_factory=list, name="allowedFunctionNames")


class _Config(Struct, frozen=True, forbid_unknown_fields=True):
    calling: _Calling = msgspec.field(name="functionCallingConfig")


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
