"""Requests for servers of open models (vLLM and similar) that imitate OpenAI's Chat Completions API.

The target is a look-alike of ``openai-chat``: only the differences are here. Each model has its own chat template, and
what a template refuses depends on the model's family. A model of an unknown family gets the plain chat.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import structs

from reknit.pipeline.model import Role
from reknit.pipeline.options import ModelOptions, Structure
from reknit.pipeline.providers.openai.writer.parameters import PARAMETERS, ChatHead, chat_model
from reknit.pipeline.providers.openai.writer.parts import ServedParts
from reknit.pipeline.providers.openai_chat.writer import OPENAI_CHAT

_SPEAKERS: Final[frozenset[Role]] = frozenset({"user", "assistant"})
# Servers themselves refuse no order; a template may.
_STRICT: Final = Structure(assistant_last="always", ids_again=True)
_FREE: Final = structs.replace(_STRICT, neighbours=_SPEAKERS)
# The server takes functions alone, and one system message.
_ANY: Final = ModelOptions(
    structure=_STRICT,
    joined_system=True,
    user_blocks=frozenset({"input_audio", "audio_url", "video_url"}),
    custom_tools=False,
)
_STRICT_MISTRAL: Final = structs.replace(
    _ANY,
    # Only words are marked as a prefix.
    structure=structs.replace(_STRICT, assistant_last="text"),
    short_ids=True,
    prefill_mark="prefix",
    answer_required=True,
    reasoning=False,
)
_MISTRAL: Final = structs.replace(
    _STRICT_MISTRAL, structure=structs.replace(_FREE, assistant_last="text"), answer_required=False
)
# The first that fits counts.
_FAMILIES: Final = tuple(
    (re.compile(pattern), family)
    for pattern, family in (
        (r"gemma-?[123]|llama-?2(?!\d)", structs.replace(_ANY, calls_as_text=True, reasoning=False)),
        (r"llama-?3(?!\d)", structs.replace(_ANY, structure=_FREE, single_call=True, reasoning=False)),
        (r"devstral|mistral-?(7b|nemo)|mixtral", _STRICT_MISTRAL),
        (r"mistral|ministral|magistral|pixtral|codestral|voxtral", _MISTRAL),
        (r"qwen|glm-4|gpt-oss", structs.replace(_ANY, structure=_FREE)),
    )
)


def served_model(model: str | None) -> ModelOptions:
    """Return the options of a model family's template, by the name that a server gives the model."""
    name = (model or "").lower()
    family = next((found for pattern, found in _FAMILIES if pattern.search(name)), _ANY)
    # The rest is the model's own, wherever it is served.
    own = chat_model(model)
    return structs.replace(
        family,
        system_roles=own.system_roles,
        reasoning_required=own.reasoning_required,
        limit_parameter=own.limit_parameter,
        thinking_parameter=own.thinking_parameter,
        answer_schemas=True,
        answer_objects=True,
        efforts=own.efforts,
    )


_PARAMETERS: Final = PARAMETERS | {
    "add_generation_prompt", "allowed_token_ids", "bad_words", "best_of", "chat_template", "chat_template_kwargs",
    "continue_final_message", "echo", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "ignore_eos",
    "include_reasoning", "include_stop_str_in_output", "length_penalty", "min_p", "min_tokens", "priority",
    "prompt_logprobs", "repetition_penalty", "return_token_ids", "skip_special_tokens",
    "spaces_between_special_tokens", "stop_token_ids", "structured_outputs", "top_k", "truncate_prompt_tokens",
    "use_beam_search",
}  # fmt: skip

VLLM: Final = structs.replace(
    OPENAI_CHAT,
    name="vllm",
    tail_rule="VLM-09",
    tail_rules=frozenset({"VLM-OAI-06", "VLM-04", "VLM-09"}),
    models=served_model,
    head=ChatHead(parameters=_PARAMETERS),
    parts=ServedParts(),
    # The API that is imitated reads and writes reasoning in the same field.
    owners=OPENAI_CHAT.owners | {"vllm"},
    refusal_field=False,
)
