"""Settings of other providers in Gemini's terms: the form of an answer, and how much the model reasons."""

from __future__ import annotations

import re
from typing import Final

from reknit.pipeline.providers.gemini.writer.blocks import wants_signatures
from reknit.pipeline.targets import Setting
from reknit.pipeline.targets.settings import GROUPS, AnswerForm, OwnSettings, Reasoning, Written, nearest, without

_ANSWERS: Final = frozenset(
    f"generationConfig.{name}"
    for name in (
        "responseMimeType", "response_mime_type", "responseSchema", "response_schema", "responseJsonSchema",
        "response_json_schema",
    )
)  # fmt: skip
_CONFIG: Final = "generationConfig.thinkingConfig"
_REASONS: Final = frozenset({_CONFIG, "generationConfig.thinking_config"})
_LEVELS: Final = ("low", "high")
_LEVELS_OF_FLASH: Final = ("minimal", "low", "medium", "high")
_OLDER: Final = re.compile(r"gemini-(1|2(?!\.5))|gemini-(pro|flash)(?!-latest)|gemma|learnlm")
# The least and the most budget of the models of 2.5, by the API's documentation; Pro cannot switch it off.
_BUDGETS: Final = (("pro", 128, 32768), ("flash-lite", 512, 24576), ("", 1, 24576))


def own_settings(setting: Setting) -> OwnSettings:
    model = (setting.model or "").lower()
    newer = wants_signatures(setting.model)

    def form(answer: AnswerForm) -> tuple[Written, str] | None:
        if setting.tools and not newer:
            return None  # GEM-19
        schema = {} if answer.schema is None else {"generationConfig.responseJsonSchema": answer.schema}
        return {"generationConfig.responseMimeType": "application/json", **schema}, without(answer.notes)

    def reasoning(asked: Reasoning) -> tuple[Written, str] | None:
        if _OLDER.search(model):
            return None
        if newer and "gemini-" in model:
            level = nearest(asked.level, _LEVELS_OF_FLASH if "flash" in model else _LEVELS)
            return {_CONFIG: {"thinkingLevel": level.upper()}}, level
        least, most = next((least, most) for name, least, most in _BUDGETS if name in model)
        budget = 0 if asked.budget == 0 and least != 128 and model else min(max(asked.budget, least), most)
        return {_CONFIG: {"thinkingBudget": budget}}, "none" if budget == 0 else f"{budget} tokens"

    return OwnSettings(groups=GROUPS, answers=_ANSWERS, reasons=_REASONS, form=form, reasoning=reasoning)
