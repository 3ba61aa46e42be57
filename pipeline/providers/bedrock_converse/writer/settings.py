"""Settings of other providers in Converse's terms: the form of an answer, and how much Claude reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw, structs

from reknit.pipeline.providers.anthropic.writer.settings import (
    answer_schema,
    takes_forms,
    write_reasoning,
)
from reknit.pipeline.targets import legal_name
from reknit.pipeline.targets.head import HeadWriter, Params, members_of, sort_params
from reknit.pipeline.targets.settings import GROUPS, AnswerForm, OwnSettings, Reasoning, Written, nearest, without
from reknit.pipeline.targets.strict_schemas import without_limits

_FIELDS: Final = "additionalModelRequestFields"
_CONFIG: Final = "output_config"
# OpenAI's open weights have their own parameter for it (AWS's documentation of OpenAI's models).
_OPEN_WEIGHTS: Final = "gpt-oss"
_EFFORTS: Final = ("low", "medium", "high")
# Families without schemas of answers.
_NO_FORMS: Final = ("nova", "titan", "llama")


def with_own_form(params: Params, model: str) -> Params:
    """The parameters with the form of an answer of Claude's apart from its other settings, which Claude takes here."""
    config = members_of(params.values.get(_CONFIG, Raw(b"{}"))) or {}
    if "claude" not in model or "format" not in config:
        return params
    values: dict[str, Raw] = {}
    for name, value in params.values.items():
        if name != _CONFIG:
            values[name] = value
            continue
        values[f"{_CONFIG}.format"] = config.pop("format")
        if config:
            values[_CONFIG] = Raw(msgspec.json.encode(config))
    return structs.replace(params, values=values)


def own_form(writer: HeadWriter, params: Params, model: str) -> Params:
    """The parameters, with a form of Converse's own without the limits that Claude refuses (BED-37).

    Open objects stay: the service took them for Claude (recorded twice), which Anthropic's own API refuses.
    """
    given = msgspec.json.decode(params.values.get("outputConfig", b"null"))
    try:
        inner = given["textFormat"]["structure"]["jsonSchema"]
        schema = msgspec.json.decode(inner["schema"])
    except (KeyError, TypeError, msgspec.DecodeError, RecursionError):
        return params
    taken = without_limits(schema)
    if "claude" not in model or taken == schema or not writer.makes("answer_schema_loosened"):
        return params
    path = params.place("outputConfig") + ".textFormat.structure.jsonSchema.schema"
    writer.note_fix("answer_schema_loosened", path, before=schema, after=taken)
    inner["schema"] = msgspec.json.encode(taken).decode()
    return structs.replace(params, values=params.values | {"outputConfig": Raw(msgspec.json.encode(given))})


def own_settings(model: str, given: Mapping[str, Raw]) -> OwnSettings:
    claude = "claude" in model
    fields = members_of(given.get(_FIELDS, Raw(b"{}"))) or {}
    own = {"thinking", _CONFIG} if claude else set()
    if not fields.keys().isdisjoint(("thinking", _CONFIG, "reasoning_config", "reasoning_effort")):
        own.add(_FIELDS)

    def form(answer: AnswerForm) -> tuple[Written, str] | None:
        known = takes_forms(model) if claude else not any(name in model for name in _NO_FORMS)
        if answer.schema is None or not known:
            return None
        schema, lost = answer_schema(answer)
        text = msgspec.json.encode(schema).decode()
        described = {"description": answer.description} if answer.description else {}
        inner = {"schema": text, "name": legal_name(answer.name or "answer", 64), **described}
        return {"outputConfig": {"textFormat": {"type": "json_schema", "structure": {"jsonSchema": inner}}}}, without(
            lost
        )

    def reasoning(asked: Reasoning) -> tuple[Written, str] | None:
        if claude:
            return write_reasoning(asked, model, sort_params(given).values)
        if _OPEN_WEIGHTS not in model:
            return None
        level = nearest(asked.level, _EFFORTS)
        return {_FIELDS: {"reasoning_effort": level}}, level

    return OwnSettings(
        groups=GROUPS - {"outputConfig", _FIELDS} - ({_CONFIG} if claude else set()),
        answers=frozenset({"outputConfig"}),
        reasons=frozenset(own),
        form=form,
        reasoning=reasoning,
    )
