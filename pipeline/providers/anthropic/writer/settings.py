"""Settings of other providers in Claude's terms: the form of an answer, and how much the model reasons.

Newer models have an effort, older ones a budget for thinking. Thinking is only switched on where nothing else in the
request forbids it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, structs

from reknit.pipeline.targets.head import HeadWriter, Params
from reknit.pipeline.targets.settings import AnswerForm, Reasoning, Written, nearest, without
from reknit.pipeline.targets.strict_schemas import closed, is_open, without_limits, without_members

_VERSION: Final = re.compile(r"claude-(?:([a-z]+)-)?(\d+)(?:[-.](\d{1,2}))?(?!\d)")
_FORMS_SINCE: Final = (4, 5)
_EFFORT_SINCE: Final = (4, 6)
_THINKS_SINCE: Final = (3, 7)
_THINKS_UNTIL: Final = (5, 0)
# Opus 4.5 was the first with an effort. `This model does not support effort level 'xhigh'` (recorded of Opus 4.6).
_EFFORTS: Final = (
    ((4, 7), ("low", "medium", "high", "xhigh", "max")),
    ((4, 6), ("low", "medium", "high", "max")),
    ((4, 5), ("low", "medium", "high")),
)
_LEAST_BUDGET: Final = 1024
# Limits that schemas of answers cannot have: `For 'array' type, property 'maxItems' is not supported` (recorded).
_NO_LIMITS: Final = frozenset(
    {
        "exclusiveMaximum", "exclusiveMinimum", "maxItems", "maxProperties", "maximum", "minItems", "minProperties",
        "minimum", "multipleOf", "uniqueItems",
    }
)  # fmt: skip
# Parameters next to which a model refuses to think.
_UNLIKE_THINKING: Final = ("temperature", "top_p", "top_k")

_Version = tuple[int, int]
_NEWEST: Final = (9, 0)


def _version(model: str | None) -> _Version | None:
    """The version of a model; the newest where no model is named, None for the models of others."""
    found = _VERSION.search(model or "")
    if found is None:
        return None if model else _NEWEST
    return int(found[2]), int(found[3] or 0)


def takes_forms(model: str | None) -> bool:
    """Return True for a model that answers in JSON of a schema."""
    version = _version(model)
    return version is not None and (version >= _FORMS_SINCE or "opus-4-1" in (model or ""))


def answer_schema(form: AnswerForm) -> tuple[Any, list[str]]:
    """The schema of an answer without the members that are refused, and their names."""
    bare, lost = without_members(form.schema, _NO_LIMITS)
    return closed(bare), [*lost, "additionalProperties"] if is_open(bare) else lost


def write_form(form: AnswerForm, model: str | None) -> tuple[Written, str] | None:
    if form.schema is None or not takes_forms(model):
        return None
    schema, lost = answer_schema(form)
    written = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    return written, without([*form.notes, *lost])


def _taken_schema(writer: HeadWriter, schema: Any, path: str) -> Any:  # noqa: ANN401  any JSON
    """The schema of an answer without the limits that are refused, and with closed objects (ANT-47)."""
    for code, change in (("answer_schema_loosened", without_limits), ("answer_schema_closed", closed)):
        taken = change(schema)
        if taken != schema and writer.makes(code):
            writer.note_fix(code, path, before=schema, after=taken)
            schema = taken
    return schema


def own_form(writer: HeadWriter, params: Params) -> Params:
    """The parameters, with a schema of an answer, under either name of Claude's own, as it is taken."""
    for name in ("output_config", "output_format"):
        given: Any = msgspec.json.decode(params.values.get(name, b"null"))
        form = given.get("format") if name == "output_config" and isinstance(given, dict) else given
        if not isinstance(form, dict) or not isinstance(form.get("schema"), dict):
            continue
        path = params.place(name) + (".schema" if form is given else ".format.schema")
        changed = {**form, "schema": _taken_schema(writer, form["schema"], path)}
        if changed != form:
            written = Raw(msgspec.json.encode(changed if form is given else {**given, "format": changed}))
            params = structs.replace(params, values=params.values | {name: written})
    return params


def write_reasoning(reasoning: Reasoning, model: str | None, params: Mapping[str, Raw]) -> tuple[Written, str] | None:
    """How much Claude reasons, in its own parameters; None if the model or the request does not allow it."""
    version = _version(model)
    if version is None or version < _THINKS_SINCE:
        return None
    if reasoning.level == "none" and version < _THINKS_UNTIL:
        return {"thinking": {"type": "disabled"}}, reasoning.said
    levels = next((levels for since, levels in _EFFORTS if version >= since), ())
    if version >= _EFFORT_SINCE or (version == _FORMS_SINCE and "opus" in (model or "")):
        level = nearest(reasoning.level, levels)
        return {"output_config": {"effort": level}}, level
    return _thinking(reasoning, params)


def _thinking(reasoning: Reasoning, params: Mapping[str, Raw]) -> tuple[Written, str] | None:
    """A budget below the limit of tokens (ANT-38), where nothing forbids thinking (ANT-40)."""
    limit = msgspec.json.decode(params.get("max_tokens", b"0"))
    if not isinstance(limit, int) or limit <= _LEAST_BUDGET or any(name in params for name in _UNLIKE_THINKING):
        return None
    choice = bytes(params.get("tool_choice", b""))
    if any(kind in choice for kind in (b'"any"', b'"tool"', b'"required"', b'"function"')):
        return None
    budget = min(max(reasoning.budget, _LEAST_BUDGET), limit - 1)
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}, f"{budget} tokens"
