"""The writer of a request's head (everything besides the messages), for all targets.

A target describes what it has (``HeadOptions``): the places of parameters, its bounds, its names of tools, its own
tools, and its tool choices. The writer converts a setting accordingly and records what it drops. Another provider's
name of a parameter is translated without a fix, like a shape. A parameter that the target does not have, and a number
outside of its bounds, are fixes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.fixes import Fix, make
from reknit.pipeline.history.pieces import TrackedBlock
from reknit.pipeline.history.readers.head import DECLARED_SCHEMAS, SPELT, json_schema
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.model import Tool
from reknit.pipeline.options import Choice, HeadOptions
from reknit.pipeline.targets import Setting
from reknit.pipeline.targets.fitting import system_rows
from reknit.pipeline.targets.schemas import accepts_objects, is_plain, is_untyped, object_schema
from reknit.pipeline.targets.strict import is_strict
from reknit.pipeline.text.flatten import PromptText, prompt_texts


class WrittenHead(Struct, frozen=True):
    """A request without its messages as a JSON object, its repairs, and the number of its cache breakpoints.

    ``short`` is True if one of them is for five minutes. ``note`` is a text that the system prompt must have for the
    parameters.
    """

    data: bytes
    fixes: list[Fix]
    marks: int = 0
    short: bool = False
    note: str = ""

    def before(self, key: str) -> bytes:
        """Return the body up to the first message of the list ``key``."""
        return before_list(self.data, key)


def before_list(head: bytes, key: str) -> bytes:
    """A body up to the first item of its last key, a list."""
    return b'%b%b"%b":[' % (head[:-1], b"," if len(head) > 2 else b"", key.encode())


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

CHOICES: Final[frozenset[Choice]] = frozenset({"auto", "any", "tool", "none"})
_CHOICES: Final[Mapping[str, Choice]] = MappingProxyType(
    {"auto": "auto", "any": "any", "required": "any", "none": "none", "tool": "tool", "function": "tool"}
)


_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])


class Params(Struct, frozen=True):
    """A request's parameters in their input order, under Anthropic's names if those have one.

    A member of a group without such a name has a dotted name (``generationConfig.thinkingConfig``). ``places`` has the
    input place of each parameter that has another name here.
    """

    values: dict[str, Raw]
    places: dict[str, str] = {}

    def place(self, name: str) -> str:
        return f"params.{self.places.get(name, name)}"

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

    def each_of(self, known: Collection[str]) -> dict[str, str]:
        """The places of those that are ``known``, under their own names, in the order in which they came."""
        return {name: name for name in self.values if name in known}


# A schema's type as Gemini spells it: in capitals, or as the number that its libraries have for it.
_GEMINI_TYPE: Final = re.compile(rb'"type":\s*[\["]*\s*"?(?:[A-Z]{4,7}"|[1-7]\b)').search
# A tool's inner object, by shape, and the members that the readers read in it and next to it.
WRAPPERS: Final = ("function", "toolSpec", "custom", "functions")
_SCHEMAS: Final = frozenset({"parameters", "input_schema", "inputSchema"} | DECLARED_SCHEMAS)
_READ: Final = frozenset({"type", *WRAPPERS, "name", "description"} | _SCHEMAS)


def as_json_schema(schema: Raw) -> Raw:
    """A schema with its types as JSON Schema spells them."""
    return Raw(msgspec.json.encode(json_schema(msgspec.json.decode(schema)))) if _GEMINI_TYPE(schema) else schema


class Declared(Struct, frozen=True):
    """A tool as a target must write it.

    Attributes:
        tool: the tool, with the name and the schema that are sent.
        given: its input form, if that has more than the canonical form.
        path: its place in the input.
        own: it is the target's own, and written unchanged.
        same: the name and the schema are unchanged.
        loose: the schema is not one for strict calls.
    """

    tool: Tool
    given: dict[str, Raw]
    path: str
    own: bool = False
    same: bool = True
    loose: bool = False

    @property
    def described(self) -> dict[str, str]:
        return {} if self.tool.description is UNSET else {"description": self.tool.description}

    @property
    def members(self) -> dict[str, Raw]:
        """Return the tool's members in any shape, including those of its inner object."""
        inner = next((self.given[key] for key in WRAPPERS if key in self.given), None)
        found = self.given if inner is None else self.given | msgspec.json.decode(inner, type=dict[str, Raw])
        return {key: value for key, value in found.items() if key != "strict"} if self.loose else found


class ToolChoice(Struct, frozen=True):
    """Which tool the model is to call: ``tool`` names one in ``name``; ``single``: no two calls at once.

    ``spelt`` is what Gemini's request called the kind, where that was not in capitals.
    """

    kind: Choice
    name: str = ""
    single: bool = False
    spelt: str = ""


def sort_params(params: Mapping[str, Raw]) -> Params:
    """Return a request's parameters; one in a group overrides its namesake outside, null is absent."""
    values: dict[str, Raw] = {}
    places: dict[str, str] = {}

    def put(name: str, value: Raw, place: str) -> None:
        if bytes(value) != b"null":
            values[name] = value
            places[name] = place

    for key, value in params.items():
        members = members_of(value) if key in _GROUPS else None
        if members is not None:
            for name, member in members.items():
                put(_NAMES.get(name, f"{_GROUPS[key]}.{name}"), member, f"{key}.{name}")
        elif _NAMES.get(key, key) not in values:
            put(_NAMES.get(key, key), value, key)
    if bytes(values.get("stop_sequences", b"")).startswith(b'"'):
        values["stop_sequences"] = Raw(b"[%b]" % bytes(values["stop_sequences"]))
    return Params(values, {name: place for name, place in places.items() if name != place})


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
    single, spelt = choice.get("disable_parallel_tool_use") is True, choice.get(SPELT)
    spelt = spelt if isinstance(spelt, str) else ""
    if kind == "tool":
        return ToolChoice(kind, name, single, spelt) if isinstance(name, str) and name else None
    return ToolChoice(kind, single=single, spelt=spelt) if kind else None


def members_of(value: Raw) -> dict[str, Raw] | None:
    """Return an object's members; None for any other value."""
    return decoded(_OBJECT, value)


def prompt_as_text(system: str | Raw | None, target: str, fixes: list[Fix]) -> str:
    """Return the system prompt as one text, ``""`` if there is none."""
    return "\n\n".join(each.text for each in prompt_texts(system, target, fixes) if each.text.strip())


class HeadWriter:
    """Reads the parts of a setting for one target; ``fixes`` are in the order in which they were asked for."""

    def __init__(self, options: HeadOptions, setting: Setting) -> None:
        self.options = options
        self.setting = setting
        self.fixes: list[Fix] = []

    def makes(self, code: str) -> bool:
        """Return True if a repair is made, and not only observed."""
        return code not in self.setting.observed

    def note_fix(self, code: str, path: str, *, before: object = None, after: object = None, detail: str = "") -> None:
        self.fixes.append(make(code, path, before=before, after=after, target=self.options.target, detail=detail))

    def prompt_texts(self, own: Container[frozenset[str]] = (), *, keeps_blanks: bool = False) -> Iterator[PromptText]:
        return prompt_texts(self.setting.system, self.options.target, self.fixes, own, keeps_blanks=keeps_blanks)

    def system_rows(self, rows: Sequence[TrackedBlock], owners: Collection[str] = ()) -> list[TrackedBlock]:
        return system_rows(rows, self.options.target, self.fixes, owners)

    def read_params(self) -> Params:
        return self.clamped(sort_params(self.setting.params))

    def clamped(self, params: Params) -> Params:
        """The parameters with each number inside the target's bounds."""
        if not self.makes("parameter_clamped"):
            return params
        values = dict(params.values)
        for name, (least, most) in self.options.bounds.items():
            if name not in values:
                continue
            given = msgspec.json.decode(values[name])
            if isinstance(given, bool) or not isinstance(given, int | float):
                continue  # of the wrong type, which the rules report
            near = min(max(given, least), most)
            if near != given:
                detail = f"{bytes(values[name]).decode()} -> {near}"
                values[name] = Raw(msgspec.json.encode(near))
                self.note_fix("parameter_clamped", params.place(name), before=given, after=near, detail=detail)
        return structs.replace(params, values=values)

    def placed(self, params: Params, places: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the parameters at the target's places, in the order of ``places`` (by default the options').

        Parameters that are ``elsewhere`` in a request are skipped; any other one that the target does not have is a
        fix.
        """
        places = self.options.places if places is None else places
        others = [name for name in params.values if name not in places and name not in self.options.elsewhere]
        if not self.makes("param_dropped"):
            places = {**places, **{name: params.places.get(name, name) for name in others}}
        body: dict[str, Any] = {}
        for name in places:
            if name in params.values:
                group, _, own = places[name].rpartition(".")
                (body.setdefault(group, {}) if group else body).setdefault(own, params.values[name])
        for name in others if self.makes("param_dropped") else ():
            self._drop_param(params, name)
        return body

    def _drop_param(self, params: Params, name: str) -> None:
        place = params.place(name)
        self.note_fix("param_dropped", place, before=params.values[name], detail=place.removeprefix("params."))

    def declared_tools(self) -> Iterator[Declared]:
        """The tools as the target takes them; of two whose names it writes alike, only the first is sent.

        A schema whose types are spelt as Gemini spells them is sent as JSON Schema.
        """
        seen: set[str] = set()
        for at, tool in enumerate(self.setting.tools):
            path = f"tools.{at}"
            given = {} if tool.raw is UNSET else msgspec.json.decode(tool.raw, type=dict[str, Raw])
            own = bool(given) and self.options.is_own(tool, given)
            if not own and bytes(tool.input_schema) == b"null":
                self.note_fix("tool_foreign", path, before=given or tool)
                continue
            name = tool.name if own else self.options.tool_name(tool.name)
            if name in seen and self.makes("tool_repeated"):
                self.note_fix("tool_repeated", path, before=given or tool)
                continue
            if not own or "name" in given:
                seen.add(name)
            yield Declared(tool, given, path, own=True) if own else self._declared(tool, given, path, name)

    def _declared(self, tool: Tool, given: dict[str, Raw], path: str, name: str) -> Declared:
        schema = tool.input_schema
        if bytes(given.get("type", b"")) == b'"custom"' and "input_schema" not in given:
            self.note_fix("tool_as_function", path, before=given, detail="custom")
        if name != tool.name:
            self.note_fix("tool_name_rewritten", path, detail=f"{tool.name} -> {name}")
        if self.makes("schema_types_mapped"):
            schema = as_json_schema(schema)
            if schema != tool.input_schema:
                self.note_fix("schema_types_mapped", path, before=tool.input_schema, after=schema)
        same = (name, schema) == (tool.name, tool.input_schema)
        tool = structs.replace(tool, name=name, input_schema=schema)
        return self._with_taken_schema(Declared(tool, given, path, same=same))

    def _with_taken_schema(self, tool: Declared) -> Declared:
        """The tool, with another schema if the target refuses its own, which takes every call that its own does."""
        refused, schema = self.options.schema_members, tool.tool.input_schema
        given = None if refused is None else msgspec.json.decode(schema)
        if refused is None or not isinstance(given, dict) or is_plain(given, refused):
            return tool
        if self.options.keeps_schema(tool.given):
            return tool
        wrapped = not accepts_objects(given)
        merged = wrapped or not is_untyped(given, refused)
        code = "schema_wrapped" if wrapped else "schema_merged" if merged else "schema_typed"
        if not self.makes(code):
            return tool
        taken = Raw(msgspec.json.encode(object_schema(given, refused)))
        changed = sorted(refused & given.keys())
        if merged and "strict" in tool.members:
            changed.append("strict")
        self.note_fix(code, tool.path, before=schema, after=taken, detail=", ".join(changed))
        return Declared(
            structs.replace(tool.tool, input_schema=taken),
            {key: value for key, value in tool.given.items() if not (merged and key == "strict")},
            tool.path,
            same=False,
            loose=merged,
        )

    def stays_strict(self, tool: Declared, strict: Raw | None, compiles: Callable[[Raw], bool]) -> bool:
        """Return False, with a fix, for a tool that is ``strict`` and whose schema the provider does not compile.

        A tool that came without a schema stays as it is.
        """
        if not is_strict(strict) or tool.members.keys().isdisjoint(_SCHEMAS) or compiles(tool.tool.input_schema):
            return True
        if not self.makes("parameter_unsupported"):
            return True
        self.note_fix("parameter_unsupported", tool.path, before=True, detail="strict: true")
        return False

    def note_unread(self, tool: Declared, *taken: str) -> None:
        """Record the members of a tool that no reader reads and the target has not ``taken``."""
        unread = ", ".join(sorted(tool.members.keys() - _READ - {*taken}))
        if unread:
            self.note_fix("field_dropped", tool.path, before=tool.given, detail=unread)

    def choice(self, params: Params, *, tools: bool) -> ToolChoice | None:
        """The choice among tools, for a target that cannot be asked for calls one at a time."""
        if "tool_choice" not in params.values:
            return None
        choice = read_choice(params.values["tool_choice"])
        if choice is None or not tools or choice.kind not in self.options.choices:
            self._drop_param(params, "tool_choice")
            return None
        if choice.single:
            name = "tool_choice.disable_parallel_tool_use"
            self.note_fix("param_dropped", f"params.{name}", before=True, detail=name)
        return choice
