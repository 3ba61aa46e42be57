"""Settings of other providers in OpenAI's terms: the form of an answer, and how much the model reasons."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, structs

from reknit.pipeline.targets import legal_name
from reknit.pipeline.targets.head import HeadWriter, Params
from reknit.pipeline.targets.settings import AnswerForm
from reknit.pipeline.targets.strict import openai_compiles
from reknit.pipeline.targets.strict_schemas import closed, is_complete, is_open, is_strict

JSON_OBJECT: Final = {"type": "json_object"}
"""The form of an answer in JSON without a schema."""

# Levels that a model was recorded to take, or that its refusal of another one lists. The first match counts.
_EFFORTS: Final = tuple(
    (re.compile(r"(^|/)" + pattern), levels)
    for pattern, levels in (
        (r"gpt-5[.\d]*-pro(?!\w)", ("high",)),
        (r"gpt-5-chat", ()),
        (r"gpt-5\.\d+-chat", ("medium",)),
        (r"gpt-5[.\d]*-codex", ("low", "medium", "high")),
        (r"gpt-5\.\d", ("none", "low", "medium", "high")),
        (r"gpt-5(?!\w)", ("minimal", "low", "medium", "high")),
        (r"o1-(mini|preview)", ()),
        (r"o\d[\w-]*-deep-research", ("medium",)),
        (r"o\d(?![\w.])", ("low", "medium", "high")),
        (r"gpt-oss", ("low", "medium", "high")),
    )
)
# gpt-4 and gpt-3.5 refuse it: `Invalid parameter: 'response_format' of type 'json_schema'` (recorded).
_TAKES_FORMS: Final = re.compile(r"(^|/)(gpt-4o|gpt-4\.1|gpt-5|o1(?!-mini|-preview)|o[34])(?![\d.]*\w)")
# Those refuse it too: `Invalid parameter: 'response_format' of type 'json_object' is not supported with this model.`
# (the API's documentation, JSON mode).
_NO_OBJECTS: Final = re.compile(
    r"(^|/)(gpt-4(-0314|-0613|-32k[-\w]*|-vision-preview)?|gpt-3\.5-turbo(-0301|-0613|-16k[-\w]*)|o1-(mini|preview))"
    r"(?![-.\w])"
)

# The targets that compile the schemas of strict tools and answers.
_COMPILERS: Final = frozenset({"openai-chat", "openai-responses"})
# A router serves the models of other makers. No refusal by one is known.
_OPENAI_MODEL: Final = re.compile(r"$|(ft:)?(gpt-|chatgpt-|codex-|o\d)")


def efforts_of(model: str | None) -> tuple[str, ...]:
    """The levels of reasoning of a model; none if it has none, or is not known."""
    return next((levels for pattern, levels in _EFFORTS if pattern.search((model or "").lower())), ())


def takes_forms(model: str | None) -> bool:
    """Return True for a model that answers in JSON of a schema."""
    return _TAKES_FORMS.search((model or "").lower()) is not None


def takes_objects(model: str | None) -> bool:
    """Return True for a model that answers in JSON without a schema."""
    return _NO_OBJECTS.search((model or "").lower()) is None


def compiles_strict(writer: HeadWriter) -> bool:
    """Return True if the schemas of strict tools and answers are compiled (OAI-24, RSP-26)."""
    return writer.options.target in _COMPILERS and bool(_OPENAI_MODEL.match((writer.setting.model or "").lower()))


def asks_json(head: bytes, *place: str) -> bool:
    """Return True if the form of the answer at a place of a request's head is a JSON object without a schema."""
    form = msgspec.json.decode(head) if JSON_OBJECT["type"].encode() in head else None
    for name in (*place, "type"):
        form = form.get(name) if isinstance(form, dict) else None
    return form == JSON_OBJECT["type"]


def own_form(writer: HeadWriter, params: Params, name: str = "response_format", inner: str = "json_schema") -> Params:
    """The parameters of an API, whose form of an answer is strict only where its schema can be."""
    given = msgspec.json.decode(params.values.get(name, b"null"))
    form = given.get(inner) if isinstance(given, dict) else None
    if not isinstance(form, dict) or form.get("strict") is not True or not isinstance(form.get("schema"), dict):
        return params
    schema = form["schema"]
    fits = openai_compiles(Raw(msgspec.json.encode(schema))) if compiles_strict(writer) else is_complete(schema)
    if fits or not writer.makes("answer_schema_loosened"):
        return params
    writer.note_fix("answer_schema_loosened", params.place(name), before=given, detail="strict")
    written = Raw(msgspec.json.encode({**given, inner: {**form, "strict": False}}))
    return structs.replace(params, values=params.values | {name: written})


def write_form(form: AnswerForm) -> tuple[Mapping[str, Any], str] | None:
    """The form of an answer, strict where the schema can be, with words where it cannot; its top level is an object."""
    if not isinstance(form.schema, dict) or form.schema.get("type") != "object":
        return None
    narrow = closed(form.schema)
    strict = form.strict and not is_open(form.schema) and is_strict(narrow)
    described = {"description": form.description} if form.description else {}
    schema = narrow if strict else form.schema
    written = {"name": legal_name(form.name or "answer", 64), **described, "strict": strict, "schema": schema}
    return written, "" if strict == form.strict else "strict -> not strict"
