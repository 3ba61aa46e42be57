"""Requests for DeepSeek's own API. Only the differences from ``openai-chat`` are here.

The API takes text alone. While a model thinks, it requires the reasoning of each message with calls back, whoever
wrote it, and takes no choice that forces a call. It has no schema for answers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Raw, structs

from reknit.pipeline.options import NO_EXTRAS, ModelOptions
from reknit.pipeline.providers.openai.writer.parameters import (
    ChatHead,
    chat_model,
    fit_effort,
    with_one_of_both,
)
from reknit.pipeline.providers.openai.writer.parts import ServedParts
from reknit.pipeline.providers.openai_chat.writer import OPENAI_CHAT
from reknit.pipeline.targets.facts import Fitting
from reknit.pipeline.targets.head import HeadWriter, Params

# The name under which successive messages of one role, and an assistant's first, were refused in 2025.
_STRICT: Final = re.compile(r"deepseek-reasoner")
# The models that think unless a request says otherwise (recorded on deepseek-v4-flash).
_THINKING: Final = re.compile(r"deepseek-(v4|reasoner)")
# The models with levels of effort, and the levels.
_WITH_EFFORTS: Final = re.compile(r"deepseek-v4")
_LEVELS: Final = ("low", "medium", "high", "max")
_EFFORTS: Final = MappingProxyType({"minimal": "low", "xhigh": "max"})


class DeepSeekParts(ServedParts):
    """Text alone."""

    def image(self, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401, ARG002  no such part
        return None


def deepseek_model(model: str | None) -> ModelOptions:
    """Return the options of one of DeepSeek's models."""
    name = (model or "").lower()
    chat = chat_model(model)
    is_strict = _STRICT.search(name) is not None
    return structs.replace(
        chat,
        structure=structs.replace(
            chat.structure,
            own="",  # no speech
            assistant_first=not is_strict,
            assistant_last="text",
            neighbours=frozenset() if is_strict else chat.structure.neighbours,
            blank=frozenset(),
            system_inside=True,
            system_first=True,
        ),
        system_roles=frozenset({"system"}),
        any_reasoning=chat.reasoning_required,
        images=False,
        user_blocks=frozenset(),
        custom_tools=False,
        prefill_mark="prefix",
        limit_parameter="max_tokens",
        thinking_parameter=True,
        answer_schemas=True,  # in the system prompt
        answer_objects=True,
        efforts=_LEVELS if _WITH_EFFORTS.search(name) else (),
    )


def _in_deepseeks_words(writer: HeadWriter, params: Params, model: str | None) -> Params:
    """Return the parameters as DeepSeek takes them."""
    name = (model or "").lower()
    thinks, is_reasoner = _THINKING.search(name) is not None, _STRICT.search(name) is not None
    params = with_one_of_both(writer, params, thinks=thinks, switchable=not is_reasoner)
    value = params.values.get("response_format")
    if _schema_of(value) is None or not writer.makes("schema_described"):
        return params
    writer.note_fix("schema_described", params.place("response_format"), before=value)
    return structs.replace(params, values=params.values | {"response_format": Raw(b'{"type":"json_object"}')})


def _fitted(fitting: Fitting, body: dict[str, Any]) -> dict[str, Any]:
    """Return a body with an effort that DeepSeek has."""
    return fit_effort(fitting, body, _EFFORTS)


def _schema_of(value: Raw | None) -> Any:  # noqa: ANN401  any JSON
    """Return the schema of a format for answers, or None."""
    given = None if value is None else msgspec.json.decode(value)
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        return None
    described = given.get("json_schema")
    return described.get("schema", {}) if isinstance(described, dict) else {}


def described_schema(params: Mapping[str, Raw]) -> str:
    """Return the text that says in the system prompt what a schema for answers says."""
    schema = _schema_of(params.get("response_format"))
    if schema is None:
        return ""
    return f"Answer with a JSON object that matches this JSON schema: {msgspec.json.encode(schema).decode()}"


DEEPSEEK: Final = structs.replace(
    OPENAI_CHAT,
    name="deepseek",
    tail_rule="DSK-06",
    tail_rules=frozenset({"DSK-06", "DSK-OAI-06"}),
    models=deepseek_model,
    head=ChatHead(bounds={"temperature": (0, 2)}, rewrite=_in_deepseeks_words, fit=_fitted, note=described_schema),
    parts=DeepSeekParts(),
    owners=OPENAI_CHAT.owners | {"deepseek"},
    refusal_field=False,
)
