"""OpenAI's Chat Completions API, and the hosts that speak it strictly (DeepSeek, Kimi, Groq, Mistral's own).

Readable reasoning is kept where it came through this API and the model is not one of OpenAI's own, which write none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pipeline.history.pieces import Piece
from pipeline.model import Structure
from pipeline.targets._openai.chat import ChatDialect
from pipeline.targets._openai.families import Template, chat_model
from pipeline.targets._openai.parameters import PARAMETERS, write_chat_head
from pipeline.targets._openai.parts import ChatParts
from pipeline.targets._openai.speech import Voice
from pipeline.targets.base import Setting, shortened

NAME: Final = "openai-chat"
_OWN: Final = frozenset({NAME})
_SPEECH: Final = frozenset({"input_audio"})


class OpenAIChat:
    name = NAME
    text = False
    # The API itself takes an assistant's message at the end: what refuses it is the policy.
    tail_rule = "OAI-22"
    tail_rules = frozenset({"OAI-06"})

    def call_id(self, model: str | None) -> Callable[[str], str]:  # noqa: ARG002  all models have it from the API
        """At most 40 characters (OAI-03)."""
        return shortened

    def structure(self, setting: Setting) -> Structure:
        """What recorded requests were accepted with; every call is answered directly, and every result has its call."""
        return Structure(
            assistant_first=True,
            assistant_last="always",
            neighbours=frozenset({"user", "assistant"}),
            blank=frozenset({"assistant"}),
            ids_again=True,
            system_inside=bool(chat_model(setting.model).system),
        )

    def prepare(self, setting: Setting, system: Sequence[Piece]) -> ChatDialect:
        model = chat_model(setting.model)
        voice = Voice(
            target=NAME,
            parts=ChatParts(),
            call_id=self.call_id(setting.model),
            model=setting.model,
            providers=_OWN if model.reasoning else frozenset(),
            passed=_SPEECH if model.hears else frozenset(),
            refusals=True,
            owners=_OWN,
            observed=setting.observed,
        )
        head = write_chat_head(setting, NAME, PARAMETERS, model)
        return ChatDialect(voice, head, setting, system, model=model, template=Template(one_system=False))
