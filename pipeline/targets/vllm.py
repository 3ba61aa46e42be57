"""Servers of open models that speak OpenAI's chat (vLLM and its kin), each model with its own chat template.

What a template refuses depends on the model's family, which the model's name tells (``_openai.families``). A family
that is not known gets the plain chat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from msgspec import structs

from pipeline.history.pieces import Piece
from pipeline.model import Role, Structure
from pipeline.targets._openai.families import chat_model, template
from pipeline.targets._openai.parameters import PARAMETERS, write_chat_head
from pipeline.targets._openai.parts import ServedParts
from pipeline.targets._openai.speech import Voice
from pipeline.targets.base import Setting, nine, shortened
from pipeline.targets.openai_chat import ChatDialect

NAME: Final = "vllm"
_SERVED: Final = PARAMETERS | {
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

# What the mends are for that one of a template's wishes takes.
_ASKED: Final = {"assistant_inserted": "answer_first", "calls_serialised": "single_call", "calls_as_text": "plain"}


class Vllm:
    name = NAME
    text = False
    tail_rule = "VLM-09"
    tail_rules = frozenset({"VLM-OAI-06", "VLM-04", "VLM-09"})

    def call_id(self, model: str | None) -> Callable[[str], str]:
        """Nine letters and digits where the template wants them (VLM-06), else what the API takes."""
        return nine if template(model).short_ids else shortened

    def structure(self, setting: Setting) -> Structure:
        """What a template takes; servers themselves refuse none of it."""
        family = template(setting.model)
        neighbours: frozenset[Role] = frozenset({"user", "assistant"} if family.neighbours else ())
        # Only words are marked as a prefix.
        last: Literal["text", "always"] = "text" if family.prefix else "always"
        return Structure(assistant_last=last, neighbours=neighbours, ids_again=True)

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> ChatDialect:
        family = template(setting.model)
        # What a template asks for, a policy may want to see refused.
        family = structs.replace(family, **{name: False for code, name in _ASKED.items() if code in setting.observed})
        voice = Voice(
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
        head = write_chat_head(setting, NAME, _SERVED, model)
        return ChatDialect(voice, head, setting, system, model=model, template=family)
