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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, structs

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
COMMON: Final = frozenset(_NAMES.values())
# Objects that hold such parameters.
_GROUPS: Final = MappingProxyType(
    {
        "inferenceConfig": "inferenceConfig",
        "generationConfig": "generationConfig",
        "generation_config": "generationConfig",
    }
)

Choice: TypeAlias = Literal["auto", "any", "tool", "none"]
CHOICES: Final[frozenset[Choice]] = frozenset({"auto", "any", "tool", "none"})
_CHOICES: Final[Mapping[str, Choice]] = MappingProxyType(
    {"auto": "auto", "any": "any", "required": "any", "none": "none", "tool": "tool", "function": "tool"}
)


class Params(Struct, frozen=True):
    """A request's parameters in the order in which they came, under Anthropic's names where those have one.

    A member of a group that has no such name stands under a name with a dot (``generationConfig.thinkingConfig``).
    ``places`` says where a parameter was given that stands under another name here.
    """

    values: dict[str, Raw]
    places: dict[str, str] = {}

    def place(self, name: str) -> str:
        """Where in the input a parameter was given."""
        return f"params.{self.places.get(name, name)}"

    def dropped(self, name: str, target: str) -> Fix:
        """The record that a target has no place for a parameter."""
        place = self.place(name)
        detail = place.removeprefix("params.")
        return make("param_dropped", place, before=self.values[name], target=target, detail=detail)

    def renamed(self, old: str, new: str) -> Params:
        """The parameters with one under another name, unless there is one of that name."""
        return self.said_as(old, {new: self.values[old]}) if old != new and old in self.values else self

    def said_as(self, name: str, others: Mapping[str, Raw]) -> Params:
        """The parameters with others in place of one; what was given under the name of such a one stays."""
        values, places = {}, dict(self.places)
        for key, value in self.values.items():
            if key != name:
                values[key] = value
                continue
            for other in others.keys() - self.values.keys():
                values[other] = others[other]
                places[other] = places.get(name, name)
        return Params(values, places)

    def at_places(
        self, places: Mapping[str, str], target: str, fixes: list[Fix], elsewhere: Collection[str] = ()
    ) -> dict[str, Any]:
        """The parameters where a target has them (``inferenceConfig.topP``), in the order of ``places``.

        What stands ``elsewhere`` in a request is passed over; each other one that the target does not have is a fix.
        """
        body: dict[str, Any] = {}
        for name in places:
            if name in self.values:
                group, _, own = places[name].rpartition(".")
                (body.setdefault(group, {}) if group else body).setdefault(own, self.values[name])
        fixes += [self.dropped(name, target) for name in self.values if name not in places and name not in elsewhere]
        return body


# A schema's type as Gemini spells it: in capitals, or as the number that its libraries have for it.
_GEMINI_TYPE: Final = re.compile(rb'"type":\s*[\["]*\s*"?(?:[A-Z]{4,7}"|[1-7]\b)').search
# A tool's inner object, by shape, and what the readers read in it and beside it.
_WRAPPERS: Final = ("function", "toolSpec", "custom", "functions")
_READ: Final = frozenset(
    {"type", *_WRAPPERS, "name", "description", "parameters", "input_schema", "inputSchema"} | DECLARED_SCHEMAS
)


class Declared(Struct, frozen=True):
    """A tool as a target is to write it.

    Attributes:
        tool: the tool, under the name and with the schema that are sent.
        given: what it came as, where that says more than the canonical form.
        path: its place in the input.
        own: it is the target's own, to be written as it came.
        same: the name and the schema are those that came.
    """

    tool: Tool
    given: dict[str, Raw]
    path: str
    own: bool = False
    same: bool = True

    @property
    def described(self) -> dict[str, str]:
        """The description as a member, none where there is none."""
        return {} if self.tool.description is UNSET else {"description": self.tool.description}

    @property
    def members(self) -> dict[str, Raw]:
        """What the tool says in any shape, those of its inner object too."""
        inner = next((self.given[key] for key in _WRAPPERS if key in self.given), None)
        return self.given if inner is None else self.given | msgspec.json.decode(inner, type=dict[str, Raw])

    def note_unread(self, target: str, fixes: list[Fix], *taken: str) -> None:
        """Record the members that no reader reads and the target has not ``taken``."""
        unread = ", ".join(sorted(self.members.keys() - _READ - {*taken}))
        if unread:
            fixes.append(make("field_dropped", self.path, before=self.given, target=target, detail=unread))


def declared_tools(
    tools: Iterable[Tool],
    target: str,
    legal: Callable[[str], str],
    is_own: Callable[[Tool, Mapping[str, Raw]], bool],
    fixes: list[Fix],
) -> Iterator[Declared]:
    """A request's tools as a target takes them; of two whose ``legal`` names are the same, only the first is sent.

    A schema whose types are spelt as Gemini spells them is sent as JSON Schema.
    """
    seen: set[str] = set()
    for at, tool in enumerate(tools):
        path = f"tools.{at}"
        given = {} if tool.raw is UNSET else msgspec.json.decode(tool.raw, type=dict[str, Raw])
        own = bool(given) and is_own(tool, given)
        if not own and bytes(tool.input_schema) == b"null":
            fixes.append(make("tool_foreign", path, before=given or tool, target=target))
            continue
        name, schema = tool.name if own else legal(tool.name), tool.input_schema
        if name in seen:
            fixes.append(make("tool_repeated", path, before=given or tool, target=target))
            continue
        if not own or "name" in given:
            seen.add(name)
        if own:
            yield Declared(tool, given, path, own=True)
            continue
        if bytes(given.get("type", b"")) == b'"custom"' and "input_schema" not in given:
            fixes.append(make("tool_as_function", path, before=given, target=target, detail="custom"))
        if name != tool.name:
            fixes.append(make("tool_name_rewritten", path, target=target, detail=f"{tool.name} -> {name}"))
        if _GEMINI_TYPE(schema):
            schema = Raw(msgspec.json.encode(json_schema(msgspec.json.decode(schema))))
            if schema != tool.input_schema:
                fixes.append(make("schema_types_mapped", path, before=tool.input_schema, after=schema, target=target))
        same = (name, schema) == (tool.name, tool.input_schema)
        yield Declared(structs.replace(tool, name=name, input_schema=schema), given, path, same=same)


class ToolChoice(Struct, frozen=True):
    """Which tool the model is to call: ``tool`` names one in ``name``; ``single``: no two calls at once."""

    kind: Choice
    name: str = ""
    single: bool = False


def chosen(params: Params, target: str, fixes: list[Fix], *, kinds: Collection[Choice]) -> ToolChoice | None:
    """The choice among tools for a target that has these ``kinds`` of it, and none of calls one at a time."""
    if "tool_choice" not in params.values:
        return None
    choice = read_choice(params.values["tool_choice"])
    if choice is None or choice.kind not in kinds:
        fixes.append(params.dropped("tool_choice", target))
        return None
    if choice.single:
        name = "tool_choice.disable_parallel_tool_use"
        fixes.append(make("param_dropped", f"params.{name}", before=True, target=target, detail=name))
    return choice


def sort_params(params: Mapping[str, Raw]) -> Params:
    """A request's parameters; one in a group wins over its namesake beside it, null is absent."""
    values: dict[str, Raw] = {}
    places: dict[str, str] = {}

    def put(name: str, value: Raw, place: str) -> None:
        if bytes(value) != b"null":
            values[name] = value
            places[name] = place

    for key, value in params.items():
        members = _members(value) if key in _GROUPS else None
        if members is not None:
            for name, member in members.items():
                put(_NAMES.get(name, f"{_GROUPS[key]}.{name}"), member, f"{key}.{name}")
        elif _NAMES.get(key, key) not in values:
            put(_NAMES.get(key, key), value, key)
    if bytes(values.get("stop_sequences", b"")).startswith(b'"'):
        values["stop_sequences"] = Raw(b"[%b]" % bytes(values["stop_sequences"]))
    return Params(values, {name: place for name, place in places.items() if name != place})


def clamped(params: Params, bounds: Mapping[str, tuple[float, float]], target: str, fixes: list[Fix]) -> Params:
    """The parameters with each number inside the bounds that a target has for it, the least and the most."""
    values = dict(params.values)
    for name, (least, most) in bounds.items():
        if name not in values:
            continue
        given = msgspec.json.decode(values[name])
        if isinstance(given, bool) or not isinstance(given, int | float):
            continue  # of the wrong type, which the rules tell
        near = min(max(given, least), most)
        if near != given:
            detail = f"{bytes(values[name]).decode()} -> {near}"
            place = params.place(name)
            values[name] = Raw(msgspec.json.encode(near))
            fixes.append(make("parameter_clamped", place, before=given, after=near, target=target, detail=detail))
    return structs.replace(params, values=values)


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
    single = choice.get("disable_parallel_tool_use") is True
    if kind == "tool":
        return ToolChoice(kind, name, single) if isinstance(name, str) and name else None
    return ToolChoice(kind, single=single) if kind else None


def _members(value: Raw) -> dict[str, Raw] | None:
    try:
        return msgspec.json.decode(value, type=dict[str, Raw])
    except msgspec.DecodeError:
        return None
