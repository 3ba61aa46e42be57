"""Names as a target takes them: of tools and calls, of parameters, and the choice of a tool in any of the shapes.

Tool names and ids come in the alphabet and the length of a target: the same one gives the same result. Two names never
give one. That two ids never do is seen to before they come here: the structure repair gives no id to a call that a
target of the session would write like another's (``pipeline.history.ids.IdTable``).

A parameter's name of another provider is translated without a word, as a reader translates a shape; what the target has
no place for, and a number that it has no room for, are fixes.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from pipeline.fixes import Fix, make
from pipeline.history.readers.gemini import DECLARED_SCHEMAS, json_schema
from pipeline.model import Tool

_ILLEGAL: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_LEGAL: Final = re.compile(r"[a-zA-Z0-9_-]+")
_NAME_DIGEST: Final = 10


def legal_name(name: str, longest: int) -> str:
    """``name`` where it is of ``[a-zA-Z0-9_-]`` and short enough, else one made from it and a digest."""
    if len(name) <= longest and _LEGAL.fullmatch(name):
        return name
    stem = _ILLEGAL.sub("_", name)[: longest - _NAME_DIGEST - 1]
    return f"{stem}-{hashlib.sha256(name.encode()).hexdigest()[:_NAME_DIGEST]}"


# `Expected a string with maximum length 40` (OAI-03).
LONGEST_ID: Final = 40
_ID_DIGEST: Final = 12

# `must be a-z, A-Z, 0-9, with a length of 9` (VLM-06).
NINE: Final = 9
_ALPHANUMERIC: Final = string.digits + string.ascii_letters


def shortened(call_id: str) -> str:
    """An id of at most 40 characters."""
    if len(call_id) <= LONGEST_ID:
        return call_id
    return f"{call_id[: LONGEST_ID - _ID_DIGEST - 1]}-{hashlib.sha256(call_id.encode()).hexdigest()[:_ID_DIGEST]}"


def nine(call_id: str) -> str:
    """An id of nine letters and digits."""
    if len(call_id) == NINE and call_id.isalnum() and call_id.isascii():
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:16])
    digits = []
    for _ in range(NINE):
        number, digit = divmod(number, len(_ALPHANUMERIC))
        digits.append(_ALPHANUMERIC[digit])
    return "".join(digits)


# Anthropic's names, in which the parameters meet, by those of the others.
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "max_tokens": "max_tokens",
        "max_completion_tokens": "max_tokens",
        "max_output_tokens": "max_tokens",
        "maxTokens": "max_tokens",
        "maxOutputTokens": "max_tokens",
        "temperature": "temperature",
        "top_p": "top_p",
        "topP": "top_p",
        "top_k": "top_k",
        "topK": "top_k",
        "stop": "stop_sequences",
        "stop_sequences": "stop_sequences",
        "stopSequences": "stop_sequences",
        "seed": "seed",
        "n": "n",
        "candidate_count": "n",
        "candidateCount": "n",
        "presence_penalty": "presence_penalty",
        "presencePenalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "frequencyPenalty": "frequency_penalty",
    }
)
# Objects that hold such parameters.
_GROUPS: Final = MappingProxyType(
    {
        "inferenceConfig": "inferenceConfig",
        "generationConfig": "generationConfig",
        "generation_config": "generationConfig",
    }
)

Choice: TypeAlias = Literal["auto", "any", "tool", "none"]
_CHOICES: Final[Mapping[str, Choice]] = MappingProxyType(
    {"auto": "auto", "any": "any", "required": "any", "none": "none", "tool": "tool", "function": "tool"}
)


class Params(Struct, frozen=True):
    """``common`` are the parameters that have a name of Anthropic's, ``rest`` the others as they came.

    A member of a group that has no such name is in ``rest`` under a name with a dot (``generationConfig.seed``).
    """

    common: dict[str, Raw]
    rest: dict[str, Raw]


# A schema's type as Gemini spells it: in capitals, or as the number that its libraries have for it.
_GEMINI_TYPE: Final = re.compile(rb'"type":\s*[\["]*\s*"?(?:[A-Z]{4,7}"|[1-7]\b)').search
# A tool's inner object, by shape, and what the readers read in it and beside it.
_WRAPPERS: Final = ("function", "toolSpec", "custom", "functions")
_READ: Final = frozenset(
    {"type", *_WRAPPERS, "name", "description", "parameters", "input_schema", "inputSchema"} | DECLARED_SCHEMAS
)


class ToolNames:
    """The names of a request's tools as a target takes them; of two that come out the same, only the first is sent.

    A schema whose types are spelt as Gemini spells them is sent as JSON Schema.
    """

    def __init__(self, target: str, legal: Callable[[str], str], fixes: list[Fix]) -> None:
        self._target = target
        self._legal = legal
        self._fixes = fixes
        self._seen: set[str] = set()

    def declare(self, tool: Tool, given: Mapping[str, Any] | None, path: str) -> Tool | None:
        """The tool under the name and with the schema that are sent, each with its fix; None where it is not sent."""
        name, schema = self._legal(tool.name), tool.input_schema
        if name in self._seen:
            self._fixes.append(make("tool_repeated", path, before=given or tool, target=self._target))
            return None
        self._seen.add(name)
        if given is not None and bytes(given.get("type", b"")) == b'"custom"' and "input_schema" not in given:
            self._fixes.append(make("tool_as_function", path, before=given, target=self._target, detail="custom"))
        if name != tool.name:
            detail = f"{tool.name} -> {name}"
            self._fixes.append(make("tool_name_rewritten", path, target=self._target, detail=detail))
        if _GEMINI_TYPE(schema):
            schema = Raw(msgspec.json.encode(json_schema(msgspec.json.decode(schema))))
            if schema != tool.input_schema:
                fix = make("schema_types_mapped", path, before=tool.input_schema, after=schema, target=self._target)
                self._fixes.append(fix)
        return structs.replace(tool, name=name, input_schema=schema)


def unread_keys(given: Mapping[str, Raw] | None, *taken: str) -> str:
    """The keys of a tool of any shape that no reader reads and the target has not ``taken``; ``""`` where none is."""
    if given is None:
        return ""
    inner = next((given[key] for key in _WRAPPERS if key in given), None)
    keys = given.keys() if inner is None else given.keys() | msgspec.json.decode(inner, type=dict[str, Raw]).keys()
    return ", ".join(sorted(keys - _READ - {*taken}))


class ToolChoice(Struct, frozen=True):
    """Which tool the model is to call: ``tool`` names one in ``name``."""

    kind: Choice
    name: str = ""


def sort_params(params: Mapping[str, Raw]) -> Params:
    """Sort a request's parameters; one in a group wins over its namesake beside it, null is absent."""
    common: dict[str, Raw] = {}
    rest: dict[str, Raw] = {}
    grouped: dict[str, Raw] = {}
    for key, value in params.items():
        members = _members(value) if key in _GROUPS else None
        if members is not None:
            for name, member in members.items():
                if name in _NAMES:
                    grouped[_NAMES[name]] = member
                else:
                    rest[f"{_GROUPS[key]}.{name}"] = member
        elif key in _NAMES:
            common.setdefault(_NAMES[key], value)
        else:
            rest[key] = value
    common |= grouped
    if bytes(common.get("stop_sequences", b"")).startswith(b'"'):
        common["stop_sequences"] = Raw(b"[%b]" % bytes(common["stop_sequences"]))
    return Params(
        {name: value for name, value in common.items() if bytes(value) != b"null"},
        {name: value for name, value in rest.items() if bytes(value) != b"null"},
    )


def clamped(
    params: Mapping[str, Raw], bounds: Mapping[str, tuple[float, float]], target: str, fixes: list[Fix]
) -> dict[str, Raw]:
    """The parameters with each number inside the bounds that a target has for it, the least and the most."""
    kept = dict(params)
    for name, (least, most) in bounds.items():
        if name not in params:
            continue
        given = msgspec.json.decode(params[name])
        if isinstance(given, bool) or not isinstance(given, int | float):
            continue  # of the wrong type, which the rules tell
        near = min(max(given, least), most)
        if near != given:
            kept[name] = Raw(msgspec.json.encode(near))
            detail = f"{bytes(params[name]).decode()} -> {near}"
            fixes.append(
                make("parameter_clamped", f"params.{name}", before=given, after=near, target=target, detail=detail)
            )
    return kept


def read_choice(value: Raw) -> ToolChoice | None:
    """The tool choice of Anthropic's or OpenAI's shape; None where it is neither."""
    choice = msgspec.json.decode(value)
    if isinstance(choice, str):
        kind = _CHOICES.get(choice)
        return ToolChoice(kind) if kind and kind != "tool" else None
    if not isinstance(choice, dict):
        return None
    kind = _CHOICES.get(str(choice.get("type")))
    inner = choice.get("function")
    name = (inner if isinstance(inner, dict) else choice).get("name")
    if kind == "tool":
        return ToolChoice(kind, name) if isinstance(name, str) and name else None
    return ToolChoice(kind) if kind else None


def _members(value: Raw) -> dict[str, Raw] | None:
    try:
        return msgspec.json.decode(value, type=dict[str, Raw])
    except msgspec.DecodeError:
        return None
