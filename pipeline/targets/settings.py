"""Settings that several providers have under other names: the form of the answer, and how much the model reasons.

A target says how it writes each of them (``OwnSettings``). Another provider's setting is read in common terms, and is
written in the target's terms. A nearby value is a fix, which names it. A setting that the target cannot express is left
to the writer of the head, which drops it with a fix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from reknit.pipeline.history.readers.head import json_schema
from reknit.pipeline.targets.head import HeadWriter, Params, members_of

Level: TypeAlias = str
LEVELS: Final[tuple[Level, ...]] = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""How much a model reasons, from nothing to most."""
# The budget of tokens that is nearest to a level, from the published defaults of providers and their libraries.
BUDGETS: Final[Mapping[Level, int]] = MappingProxyType(
    {"none": 0, "minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32768}
)
# The level of a model that decides by itself how much it reasons.
_BY_ITSELF: Final = "high"


class AnswerForm(Struct, frozen=True):
    """The answer is JSON of a schema, or any JSON object without one."""

    schema: Any
    name: str = ""
    description: str = ""
    strict: bool = True

    @property
    def notes(self) -> list[str]:
        """The members besides the schema that were given, and that not every provider has."""
        return [name for name, given in (("name", self.name), ("description", self.description)) if given]


class Reasoning(Struct, frozen=True):
    """How much the model reasons: a level, or a budget of tokens, from which the other one is estimated.

    ``said`` is the value in words, ``notes`` names further members of the setting, which no other provider has.
    """

    level: Level
    budget: int
    said: str
    notes: tuple[str, ...] = ()


Written: TypeAlias = Mapping[str, Any]


class OwnSettings(Struct, frozen=True, kw_only=True):
    """The settings of a target.

    Attributes:
        groups: the parameters of others whose members are settings by themselves.
        answers: the target's own names for the form of an answer.
        reasons: the target's own names for how much the model reasons.
        form: writes the form of an answer, with words for what is not the same; None if the target has no such setting.
        reasoning: writes how much the model reasons, with words for the value that was chosen; None if the target has
            no such setting.
    """

    groups: frozenset[str]
    answers: frozenset[str] = frozenset()
    reasons: frozenset[str] = frozenset()
    form: Callable[[AnswerForm], tuple[Written, str] | None] = lambda _form: None
    reasoning: Callable[[Reasoning], tuple[Written, str] | None] = lambda _reasoning: None


def mapped(writer: HeadWriter, params: Params, own: OwnSettings) -> Params:
    """The parameters with the settings of other providers in the target's terms, as far as it has them."""
    params = _expanded(params, own.groups)
    return _with_reasoning(writer, _with_form(writer, params, own), own)


def own_value(params: Params, name: str, written: Any) -> Raw:  # noqa: ANN401  JSON
    """A written parameter; members of an object that was given under its name stay."""
    given = members_of(params.values[name]) if name in params.values else None
    if given is not None and isinstance(written, dict):
        written = {**written, **given}
    return Raw(msgspec.json.encode(written))


def nearest(level: Level, levels: Collection[Level]) -> Level:
    """The level among some that is nearest to one; of two that are equally near, the lower one."""
    at = LEVELS.index(level)
    return min(levels, key=lambda each: (abs(LEVELS.index(each) - at), LEVELS.index(each)))


def without(names: Collection[str]) -> str:
    """The words for a setting that lacks some of its members."""
    return f"without {', '.join(names)}" if names else ""


def level_of(budget: int) -> Level:
    """The level whose budget is nearest to one, by their ratio."""
    if budget <= 0:
        return "none"
    return min(LEVELS[1:], key=lambda level: abs(math.log(BUDGETS[level] / budget)))


def _expanded(params: Params, groups: frozenset[str]) -> Params:
    """The parameters with each member of a group as a parameter by itself."""
    values: dict[str, Raw] = {}
    places = dict(params.places)
    for name, value in params.values.items():
        members = members_of(value) if name in groups else None
        if not members:
            values[name] = value
            continue
        for key, member in members.items():
            single = key if name == _FIELDS and key not in params.values else f"{name}.{key}"
            inner = members_of(member) if single in groups else None
            for last, part in (inner or {"": member}).items():
                own = f"{single}.{last}" if last else single
                values[own] = part
                places[own] = ".".join(part for part in (params.places.get(name, name), key, last) if part)
    return Params(values, {name: place for name, place in places.items() if name in values and name != place})


# Parameters of the model that Converse serves, under the model's own names.
_FIELDS: Final = "additionalModelRequestFields"


def _with_form(writer: HeadWriter, params: Params, own: OwnSettings) -> Params:
    if not own.answers.isdisjoint(params.values):
        return params
    given = [name for name in _FORMS if name in params.values]
    if any(name not in _TYPES_OF_ANSWERS for name in given):
        # A schema that cannot be written does not become JSON of any schema: an object is not always one of it.
        given = [name for name in given if name not in _TYPES_OF_ANSWERS]
    for name in given:
        form = _FORMS[name](msgspec.json.decode(params.values[name]))
        written = None if form is None else own.form(form)
        if written is not None:
            made, lost = written
            if lost:
                _note(writer, params, name, made, lost)
            return _replaced(params, [name, *(each for each in _TYPES_OF_ANSWERS if each in params.values)], made)
    return params


def _with_reasoning(writer: HeadWriter, params: Params, own: OwnSettings) -> Params:
    if not own.reasons.isdisjoint(params.values):
        return params
    read = {
        name: read(msgspec.json.decode(params.values[name]))
        for name, read in _REASONING.items()
        if name in params.values
    }
    found = {name: each for name, each in read.items() if each is not None}
    # A level is before a switch next to it, unless that one is off.
    off = [name for name, each in found.items() if each.level == "none"]
    for name in [*off, *(name for name in found if name not in off)]:
        written = own.reasoning(found[name])
        if written is not None:
            made, chosen = written
            for other, reasoning in found.items():
                changed = [f"{reasoning.said} -> {chosen}"] if chosen != reasoning.said else []
                changed += [f"without {note}" for note in reasoning.notes]
                if changed:
                    _note(writer, params, other, made, ", ".join(changed))
            return _replaced(params, [name, *(other for other in found if other != name)], made)
    return params


def _note(writer: HeadWriter, params: Params, name: str, made: Written, words: str) -> None:
    place = params.place(name)
    detail = f"{place.removeprefix('params.')}: {words}"
    writer.note_fix("setting_mapped", place, before=params.values[name], after=made, detail=detail)


def _replaced(params: Params, names: Collection[str], written: Written) -> Params:
    """The parameters with others in place of the first of some; the rest of them goes."""
    first, *_ = names
    values: dict[str, Raw] = {}
    places = dict(params.places)
    for name, value in params.values.items():
        if name == first:
            new = [key for key in written if key not in params.values or key in names]
            values |= {key: Raw(msgspec.json.encode(written[key])) for key in new}
            places |= {key: params.places.get(first, first) for key in new}
        elif name in written:
            values[name] = own_value(params, name, written[name])
        elif name not in names:
            values[name] = value
    return Params(values, {name: place for name, place in places.items() if name in values and name != place})


def _chat_form(value: Any) -> AnswerForm | None:  # noqa: ANN401  JSON
    inner = value.get("json_schema", value) if isinstance(value, dict) else None
    return _openai_form(inner) if isinstance(inner, dict) else None


def _openai_form(value: Any) -> AnswerForm | None:  # noqa: ANN401  JSON
    if not isinstance(value, dict):
        return None
    if value.get("type") == "json_object":
        return AnswerForm(None)
    if not isinstance(value.get("schema"), dict):
        return None
    name, description = value.get("name"), value.get("description")
    return AnswerForm(
        value["schema"],
        name if isinstance(name, str) else "",
        description if isinstance(description, str) else "",
        value.get("strict") is True,
    )


def _claude_form(value: Any) -> AnswerForm | None:  # noqa: ANN401  JSON
    schema = value.get("schema") if isinstance(value, dict) else None
    return AnswerForm(schema) if isinstance(schema, dict) else None


def _converse_form(value: Any) -> AnswerForm | None:  # noqa: ANN401  JSON
    structure = value.get("structure") if isinstance(value, dict) else None
    inner = structure.get("jsonSchema") if isinstance(structure, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("schema"), str):
        return None
    try:
        schema = msgspec.json.decode(inner["schema"])
    except (msgspec.DecodeError, RecursionError):
        return None
    return _openai_form({**inner, "schema": schema, "strict": True})


def _gemini_form(value: Any) -> AnswerForm | None:  # noqa: ANN401  JSON
    return AnswerForm(json_schema(value)) if isinstance(value, dict) else None


def _gemini_type(value: Any) -> AnswerForm | None:  # noqa: ANN401  JSON
    return AnswerForm(None) if value == "application/json" else None


# A setting that a schema makes redundant: the schema says that the answer is JSON.
_TYPES_OF_ANSWERS: Final = ("generationConfig.responseMimeType", "generationConfig.response_mime_type")
_FORMS: Final[Mapping[str, Callable[[Any], AnswerForm | None]]] = MappingProxyType(
    {
        "response_format": _chat_form,
        "text.format": _openai_form,
        "output_config.format": _claude_form,
        "output_format": _claude_form,
        "outputConfig.textFormat": _converse_form,
        "generationConfig.responseJsonSchema": _gemini_form,
        "generationConfig.response_json_schema": _gemini_form,
        "generationConfig.responseSchema": _gemini_form,
        "generationConfig.response_schema": _gemini_form,
        **dict.fromkeys(_TYPES_OF_ANSWERS, _gemini_type),
    }
)


def _by_level(value: Any) -> Reasoning | None:  # noqa: ANN401  JSON
    level = value.lower() if isinstance(value, str) else ""
    return Reasoning(level, BUDGETS[level], level) if level in LEVELS else None


def _by_budget(budget: Any) -> Reasoning | None:  # noqa: ANN401  JSON
    if isinstance(budget, bool) or not isinstance(budget, int):
        return None
    if budget < 0:
        return _by_itself("dynamic")
    return Reasoning(level_of(budget), budget, f"{budget} tokens")


def _by_itself(said: str) -> Reasoning:
    return Reasoning(_BY_ITSELF, BUDGETS[_BY_ITSELF], said)


def _by_thinking(value: Any) -> Reasoning | None:  # noqa: ANN401  JSON
    kind = value.get("type") if isinstance(value, dict) else None
    found: Reasoning | None = None
    if kind == "disabled":
        found = Reasoning("none", 0, "none")
    elif kind == "adaptive":
        found = _by_itself("adaptive")
    elif kind == "enabled":
        # DeepSeek and Moonshot have the switch alone.
        found = _by_budget(value["budget_tokens"]) if "budget_tokens" in value else _by_itself("enabled")
    return _noted(found, value, "type", "budget_tokens")


def _noted(found: Reasoning | None, value: Any, *read: str) -> Reasoning | None:  # noqa: ANN401  JSON
    """The setting with the names of the members that were not ``read``."""
    return None if found is None else structs.replace(found, notes=tuple(sorted(value.keys() - {*read})))


def _by_config(value: Any) -> Reasoning | None:  # noqa: ANN401  JSON
    if not isinstance(value, dict):
        return None
    level = next((value[key] for key in ("thinkingLevel", "thinking_level") if key in value), None)
    budget = next((value[key] for key in ("thinkingBudget", "thinking_budget") if key in value), None)
    found = _by_level(level) or _by_budget(budget)
    return _noted(found, value, "thinkingLevel", "thinking_level", "thinkingBudget", "thinking_budget")


_REASONING: Final[Mapping[str, Callable[[Any], Reasoning | None]]] = MappingProxyType(
    {
        "reasoning_effort": _by_level,
        "reasoning.effort": _by_level,
        "output_config.effort": _by_level,
        "thinking": _by_thinking,
        # Under this name Converse's guide has it for Claude.
        "reasoning_config": _by_thinking,
        "generationConfig.thinkingConfig": _by_config,
        "generationConfig.thinking_config": _by_config,
    }
)
GROUPS: Final = frozenset({"text", "reasoning", "output_config", "outputConfig", _FIELDS})
"""The parameters that hold settings as their members."""
