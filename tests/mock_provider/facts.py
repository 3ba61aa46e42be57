"""Facts of models, which a script can tighten while a session runs."""

from __future__ import annotations

from typing import Final

from mock_provider.parties import Party
from msgspec import Struct


class Facts(Struct, frozen=True, kw_only=True):
    """The limits and parameters of a model.

    Attributes:
        family: the models that read its values. Those of another family are not accepted.
        prefix_bound: its reasoning is bound to what came before it.
        loop_begins_with_thinking: with thinking enabled, the turn of an open tool loop begins with it.
        wants_signature: the first call of each step of the current turn needs a signature.
        wants_reasoning: a message with calls needs the reasoning that was issued (``exact``), or only the member.
        vision: it takes images.
        images_max: images in a request.
        image_side: pixels of the longer side.
        many_images: more images than this lower the limit to ``many_side``.
        many_side: pixels of the longer side with many images.
        image_bytes: of the base64 text of an image.
        body_bytes: of a request.
        output_max: of ``max_tokens``.
        refused_params: parameters that it does not take.
        adaptive_only: ``thinking.type`` must be ``adaptive``.
        string_tool_content: the content of a tool message must be a string.
        zero_retention: no response is stored.
    """

    family: str
    prefix_bound: bool = False
    loop_begins_with_thinking: bool = False
    wants_signature: bool = False
    wants_reasoning: str = ""
    vision: bool = True
    images_max: int = 100
    image_side: int = 8000
    many_images: int = 20
    many_side: int = 2000
    image_bytes: int = 5_242_880
    body_bytes: int = 33_554_432
    output_max: int = 64_000
    refused_params: frozenset[str] = frozenset()
    adaptive_only: bool = False
    string_tool_content: bool = False
    zero_retention: bool = False


_OF_MODELS: Final = {
    "claude-sonnet-4-20250514": Facts(family="claude-4", loop_begins_with_thinking=True),
    "anthropic.claude-sonnet-4-5": Facts(family="claude-4", images_max=20),
    "claude-fable-5-1": Facts(family="claude-5-1", prefix_bound=True),
    "gpt-5.5": Facts(family="gpt"),
    "gemini-3-pro-preview": Facts(family="gemini-3", wants_signature=True),
    "deepseek-v4-pro": Facts(family="deepseek", wants_reasoning="exact"),
    "kimi-k2.5": Facts(family="kimi", wants_reasoning="member"),
    "qwen3-vl-8b": Facts(family="qwen", images_max=2),
}


def facts_of(party: Party) -> Facts:
    return _OF_MODELS[party.model]
