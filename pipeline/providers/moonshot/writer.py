"""Requests for Moonshot's own API (Kimi). Only the differences from ``openai-chat`` are here.

While a model thinks, the API requires the reasoning of each message with calls back, be it empty, and takes no choice
that forces a call. The parameters of sampling are fixed for current models. No message is empty.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import structs

from reknit.pipeline.options import ModelOptions
from reknit.pipeline.providers.openai.writer.parameters import (
    ChatHead,
    chat_model,
    switched_thinking,
    with_one_of_both,
)
from reknit.pipeline.providers.openai.writer.parts import ServedParts
from reknit.pipeline.providers.openai_chat.writer import OPENAI_CHAT
from reknit.pipeline.targets.facts import Fact, Fitting
from reknit.pipeline.targets.head import HeadWriter, Params

# The models that think unless a request switches that off, and whose parameters of sampling are fixed.
_THINKING: Final = re.compile(r"kimi-(k2[.-]\d(?!\d)|k3|for-coding)|(^|/)k3(?!\d)")
# Those whose thinking can be switched off.
_SWITCHABLE: Final = re.compile(r"kimi-k2[.-][56](?!\d)")
# The models that always think; their parameters of sampling are free.
_ALWAYS_THINKING: Final = re.compile(r"kimi-k2-thinking")
# The models without vision.
_NO_IMAGES: Final = re.compile(r"kimi-k2(-(thinking|instruct|turbo|0\d{3})|$)|moonshot-v1-(auto|\d+k)$")


def _only(parameter: str, value: float) -> Fact:
    return Fact(
        models=_THINKING.pattern,
        parameter=parameter,
        takes=(value,),
        source="NousResearch/hermes-agent#12668; HKUDS/nanobot#4962; iOfficeAI/gemini-cli-pro#30",
    )


_SAMPLING: Final = (
    _only("top_p", 0.95), _only("n", 1), _only("presence_penalty", 0), _only("frequency_penalty", 0),
)  # fmt: skip


def moonshot_model(model: str | None) -> ModelOptions:
    """Return the options of one of Moonshot's models."""
    name = (model or "").lower()
    chat = chat_model(model)
    thinks = _thinks(name)
    return structs.replace(
        chat,
        # No speech.
        structure=structs.replace(chat.structure, own="", assistant_last="text", blank=frozenset(), marked_ids=True),
        system_roles=frozenset({"system"}),
        any_reasoning=thinks,
        reasoning_required=thinks,
        images=_NO_IMAGES.search(name) is None,
        user_blocks=frozenset({"video_url"}),
        custom_tools=False,
        empty_content=False,
        prefill_mark="partial",
        limit_parameter="",
        thinking_parameter=True,
        answer_schemas=True,
        answer_objects=True,
        json_word=False,
    )


def _thinks(name: str) -> bool:
    return _THINKING.search(name) is not None or _ALWAYS_THINKING.search(name) is not None


def _in_moonshots_words(writer: HeadWriter, params: Params, model: str | None) -> Params:
    """Return the parameters as Moonshot takes them for a model."""
    name = (model or "").lower()
    switchable = _SWITCHABLE.search(name) is not None
    return with_one_of_both(writer, params, thinks=_thinks(name), switchable=switchable)


def _fitted(fitting: Fitting, body: dict[str, Any]) -> dict[str, Any]:
    """Return a body without other values of sampling than the model's own."""
    if _THINKING.search((fitting.writer.setting.model or "").lower()) is None:
        return body
    temperature = 0.6 if switched_thinking(body) == "disabled" else 1
    return fitting.fit(body, [_only("temperature", temperature), *_SAMPLING])


MOONSHOT: Final = structs.replace(
    OPENAI_CHAT,
    name="moonshot",
    tail_rule="KIM-10",
    tail_rules=frozenset({"KIM-10", "KIM-OAI-06"}),
    models=moonshot_model,
    head=ChatHead(bounds={"temperature": (0, 1)}, rewrite=_in_moonshots_words, fit=_fitted),
    parts=ServedParts(),
    owners=OPENAI_CHAT.owners | {"moonshot"},
    refusal_field=False,
)
