"""Requests for servers of open models (vLLM and similar) that imitate OpenAI's Chat Completions API.

Each model has its own chat template, and what a template refuses depends on the model's family. A model of an unknown
family gets the plain chat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import structs

from reknit.pipeline.history.pieces import TrackedBlock
from reknit.pipeline.model import Role, Structure
from reknit.pipeline.providers.openai.writer import ChatOptions
from reknit.pipeline.providers.openai.writer.parameters import PARAMETERS, chat_model, write_chat_head
from reknit.pipeline.providers.openai.writer.parts import ServedParts
from reknit.pipeline.providers.openai_chat.writer import ChatDialect, Template
from reknit.pipeline.targets import Setting, nine, shortened

_MISTRAL: Final = Template(short_ids=True, neighbours=True, prefix=True, reasoning=False)
_STRICT_MISTRAL: Final = Template(short_ids=True, prefix=True, answer_first=True, reasoning=False)
# The first that fits counts.
_TEMPLATES: Final = tuple(
    (re.compile(pattern), template)
    for pattern, template in (
        (r"gemma-?[123]|llama-?2(?!\d)", Template(plain=True, reasoning=False)),
        (r"llama-?3(?!\d)", Template(single_call=True, neighbours=True, reasoning=False)),
        (r"devstral|mistral-?(7b|nemo)|mixtral", _STRICT_MISTRAL),
        (r"mistral|ministral|magistral|pixtral|codestral|voxtral", _MISTRAL),
        (r"qwen|glm-4|gpt-oss", Template(neighbours=True)),
    )
)
_ANY: Final = Template()


def template(model: str | None) -> Template:
    """Return the requirements of a model family's template, by the name that a server gives the model."""
    name = (model or "").lower()
    return next((found for pattern, found in _TEMPLATES if pattern.search(name)), _ANY)


NAME: Final = "vllm"
_PARAMETERS: Final = PARAMETERS | {
    "add_generation_prompt", "allowed_token_ids", "bad_words", "best_of", "chat_template", "chat_template_kwargs",
    "continue_final_message", "echo", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "ignore_eos",
    "include_reasoning", "include_stop_str_in_output", "length_penalty", "min_p", "min_tokens", "priority",
    "prompt_logprobs", "repetition_penalty", "return_token_ids", "skip_special_tokens",
    "spaces_between_special_tokens", "stop_token_ids", "structured_outputs", "top_k", "truncate_prompt_tokens",
    "use_beam_search",
}  # fmt: skip
# The API that is imitated reads and writes reasoning in the same field.
_OWN: Final = frozenset({NAME, "openai-chat"})
_MEDIA: Final = frozenset({"input_audio", "audio_url", "video_url"})

# Repairs that follow from one of a template's requirements.
_ASKED: Final = {"assistant_inserted": "answer_first", "calls_serialised": "single_call", "calls_as_text": "plain"}


class Vllm:
    name = NAME
    text = False
    tail_rule = "VLM-09"
    tail_rules = frozenset({"VLM-OAI-06", "VLM-04", "VLM-09"})

    def call_id(self, model: str | None) -> Callable[[str], str]:
        """Return the writer of ids: nine letters and digits if the template requires them (VLM-06)."""
        return nine if template(model).short_ids else shortened

    def structure(self, setting: Setting) -> Structure:
        """Return the structure that a template takes; servers themselves refuse none of it."""
        family = template(setting.model)
        neighbours: frozenset[Role] = frozenset({"user", "assistant"} if family.neighbours else ())
        # Only words are marked as a prefix.
        last: Literal["text", "always"] = "text" if family.prefix else "always"
        return Structure(assistant_last=last, neighbours=neighbours, ids_again=True)

    def prepare(self, setting: Setting, system: Sequence[TrackedBlock]) -> ChatDialect:
        family = template(setting.model)
        # A policy may ask that a template's refusal is observed instead.
        family = structs.replace(family, **{name: False for code, name in _ASKED.items() if code in setting.observed})
        voice = ChatOptions(
            target=NAME,
            parts=ServedParts(),
            call_id=self.call_id(setting.model),
            model=setting.model,
            providers=_OWN if family.reasoning else frozenset(),
            passed=_MEDIA,
            plain=family.plain,
            owners=_OWN,
            observed=setting.observed,
        )
        # The server takes functions alone.
        model = structs.replace(chat_model(setting.model), other_tools=False)
        head = write_chat_head(setting, NAME, _PARAMETERS, model)
        return ChatDialect(voice, head, setting, system, model=model, template=family)
