"""Which models want what, as far as requests have to differ; written from reports and recorded refusals."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

# Models of OpenAI's own, which never write readable reasoning, and those of them that reason: they take
# max_completion_tokens only (recorded on gpt-5-mini and gpt-5-nano).
_OPENAI: Final = re.compile(r"(^|/)(gpt-|chatgpt-|o\d(?![\w.])|computer-use-)")
_OPEN_WEIGHTS: Final = re.compile(r"gpt-oss")
_REASONING: Final = re.compile(r"(^|/)(o\d(?![\w.])|gpt-5(?!\w))")
_NO_SYSTEM: Final = re.compile(r"(^|/)o1-(mini|preview)(?!\w)")
# Makers whose models know the system, but no developer.
_NO_DEVELOPER: Final = re.compile(
    r"claude|command|deepseek|gemini|gemma|glm|grok|kimi|llama|minimax|ministral|mistral|mixtral|moonshot|nova|phi-|qwen"
)
# Models that want the reasoning of each turn with calls back, be it empty (DSK-01, KIM-01).
_ECHOING: Final = re.compile(r"deepseek-(v3[.-]2|v4|reasoner)|kimi-k2(-thinking|[.-]\d(?!\d))")

# Models with a parameter that says whether they think.
_SWITCHED: Final = re.compile(r"deepseek|kimi|moonshot|glm")


class Chat(Struct, frozen=True):
    """What a model takes through a chat API.

    Attributes:
        reasoning: readable reasoning of earlier turns.
        echo: turns with calls carry their reasoning always.
        system: the roles that it knows for the system's messages.
        limit: the name of the limit on tokens where it must be that one.
        hears: speech.
        switch: the parameter ``thinking``, which says whether the model thinks.
        other_tools: tools that are no functions.
    """

    reasoning: bool = True
    echo: bool = False
    system: frozenset[str] = frozenset({"system", "developer"})
    limit: str = ""
    hears: bool = False
    switch: bool = False
    other_tools: bool = True


def chat_model(model: str | None) -> Chat:
    name = (model or "").lower()
    own = _OPENAI.search(name) is not None and _OPEN_WEIGHTS.search(name) is None
    return Chat(
        reasoning=not own,
        echo=_ECHOING.search(name) is not None,
        system=_roles(name),
        limit="max_completion_tokens" if own and _REASONING.search(name) else "",
        hears="audio" in name,
        switch=_SWITCHED.search(name) is not None,
    )


def _roles(name: str) -> frozenset[str]:
    if _NO_SYSTEM.search(name):
        return frozenset()
    return frozenset({"system"} if _NO_DEVELOPER.search(name) else {"system", "developer"})


class Template(Struct, frozen=True):
    """What the chat template of an open model's family asks for.

    Attributes:
        short_ids: ids of calls are nine letters and digits (VLM-06).
        single_call: a message has one call (VLM-05).
        answer_first: the assistant speaks between results and the user (VLM-02, VLM-08).
        plain: there are no calls and results at all; they are written as text (VLM-01).
        neighbours: two messages of the user's, or of the assistant's, may follow each other.
        prefix: an answer to go on with is marked as one (VLM-09).
        reasoning: readable reasoning of earlier turns.
        one_system: the system speaks once, at the beginning (VLM-03).
    """

    short_ids: bool = False
    single_call: bool = False
    answer_first: bool = False
    plain: bool = False
    neighbours: bool = False
    prefix: bool = False
    reasoning: bool = True
    one_system: bool = True


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
    """What the template of a model's family asks for, by the name that a server gives the model."""
    name = (model or "").lower()
    return next((found for pattern, found in _TEMPLATES if pattern.search(name)), _ANY)
