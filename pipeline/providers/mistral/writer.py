"""Requests for Mistral's own API. Only the differences from ``openai-chat`` are here.

Members and parameters that the API does not know are refused (``Extra inputs are not permitted``), so everything that
only OpenAI's API has is left out. Reasoning is a part of the content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Raw, structs

from reknit.pipeline.model import Role
from reknit.pipeline.options import NO_EXTRAS, ModelOptions
from reknit.pipeline.providers.openai.writer.parameters import CHOICES, ChatHead, chat_model, fit_effort
from reknit.pipeline.providers.openai.writer.parts import ServedParts
from reknit.pipeline.providers.openai_chat.writer import OPENAI_CHAT
from reknit.pipeline.targets.facts import Fitting
from reknit.pipeline.targets.head import HeadWriter, Params

# The families that were recorded to take a user message directly after a result. Others were reported to refuse it.
_USER_AFTER_TOOL: Final = re.compile(r"mistral-small|ministral")
# The models without thinking, which have no part for it.
_NO_THINKING: Final = re.compile(r"codestral|devstral|mixtral|nemo|pixtral|mistral-7b|open-mistral|voxtral")
# The models without vision. The name mistral-small was one in 2024 (recorded); mistral-small-latest has it.
_NO_IMAGES: Final = re.compile(r"codestral|mixtral|mathstral|mistral-7b|nemo|saba|(^|/)mistral-(small|tiny|medium)$")
_ASSISTANT: Final[frozenset[Role]] = frozenset({"assistant"})
# Efforts are on and off (the API's documentation); thinking that was asked for stays.
_EFFORTS: Final = MappingProxyType({"minimal": "none", "low": "high", "medium": "high", "xhigh": "high", "max": "high"})


class MistralParts(ServedParts):
    """Text, images, documents and thinking."""

    def thinking(self, text: str) -> Any:  # noqa: ANN401  a part, ready to encode
        return {"type": "thinking", "thinking": [{"type": "text", "text": text}], "closed": True}

    def takes(self, media_type: str) -> bool:
        """Return True also for Word and its like, which the API converts (recorded)."""
        return media_type.startswith("application/")

    def file(self, name: str, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401, ARG002  has none
        return {"type": "document_url", "document_url": url} | ({"document_name": name} if name else {})

    def linked_file(self, url: str, extras: Mapping[str, Raw] = NO_EXTRAS) -> Any:  # noqa: ANN401, ARG002  has none
        return {"type": "document_url", "document_url": url}


def mistral_model(model: str | None) -> ModelOptions:
    """Return the options of one of Mistral's models."""
    name = (model or "").lower()
    chat = chat_model(model)
    needs_answer = _USER_AFTER_TOOL.search(name) is None
    return structs.replace(
        chat,
        structure=structs.replace(
            chat.structure,
            own="",  # no speech
            assistant_last="text",
            # An assistant's message without words is refused (MIS-06), and a system message after the assistant's is
            # (MIS-04).
            blank=frozenset(),
            system_inside=False,
            # A user's words after results are in one message with them, so that an answer can be put between.
            neighbours=_ASSISTANT if needs_answer else chat.structure.neighbours,
        ),
        system_roles=frozenset({"system"}),
        reasoning=_NO_THINKING.search(name) is None,
        reasoning_parts=True,
        short_ids=True,
        answer_required=needs_answer,
        # Others are refused, such as a user's name (MIS-07). An empty content is a member, so that it stays unchanged.
        message_members=frozenset({"content", "prefix", "role"}),
        prefill_mark="prefix",
        images=_NO_IMAGES.search(name) is None,
        user_blocks=frozenset({"input_audio", "reference"}),
        custom_tools=False,
        limit_parameter="max_tokens",
        thinking_parameter=False,
        answer_schemas=True,
        answer_objects=True,
        json_word=False,
    )


def _in_mistrals_words(_writer: HeadWriter, params: Params, _model: str | None) -> Params:
    """Return the parameters under Mistral's names."""
    return params.renamed("seed", "random_seed")


def _fitted(fitting: Fitting, body: dict[str, Any]) -> dict[str, Any]:
    """Return a body with an effort that Mistral has."""
    return fit_effort(fitting, body, _EFFORTS)


_PARAMETERS: Final = frozenset(
    {
        "frequency_penalty", "guardrails", "max_tokens", "metadata", "n", "parallel_tool_calls", "prediction",
        "presence_penalty", "prompt_cache_key", "prompt_mode", "random_seed", "reasoning_effort", "response_format",
        "safe_prompt", "stop", "stream", "temperature", "tool_choice", "top_p",
    }
)  # fmt: skip
# The API takes OpenAI's word for it too (recorded).
_CHOICES: Final = MappingProxyType({**CHOICES, "any": "any"})

MISTRAL: Final = structs.replace(
    OPENAI_CHAT,
    name="mistral",
    tail_rule="MIS-05",
    tail_rules=frozenset({"MIS-05", "MIS-OAI-06"}),
    models=mistral_model,
    head=ChatHead(
        parameters=_PARAMETERS,
        bounds={"temperature": (0, 1.5)},
        choices=_CHOICES,
        rewrite=_in_mistrals_words,
        fit=_fitted,
    ),
    parts=MistralParts(),
    owners=OPENAI_CHAT.owners | {"mistral"},
    refusal_field=False,
)
