"""The phrases in which the planner speaks of itself, and what each becomes.

Only self-reference is rewritten, never the mere word: "a cascade of rocks", ``ON DELETE CASCADE`` and "Windsurf" alone
stay. Of a phrase only the name and the maker change, so "i AM cascade" and "The Cascade workspace" keep their case.
Words are separated by blanks in one line: a phrase never reaches into another paragraph.

What the source did and this does not: "I am Cascade, made by Windsurf" kept its maker, because one rule took away what
the next looked for; a ``$&`` in a model's name was expanded.
"""

from __future__ import annotations

import re
from typing import Final

from pipeline.text.prefixes import Part, either, literal, maybe, run, sequence

# Makers by the beginning of the model's name.
_MAKERS: Final = {
    "claude": "Anthropic",
    "gpt": "OpenAI",
    "o3": "OpenAI",
    "o4": "OpenAI",
    "gemini": "Google",
    "deepseek": "DeepSeek",
    "grok": "xAI",
    "qwen": "Alibaba",
    "kimi": "Moonshot",
    "glm": "Zhipu",
    "swe": "Windsurf",
}

# What every phrase holds one of, in lower case.
ANCHORS: Final = (b"cascade", b"codeium", b"windsurf")
_GAP: Final = run(r" \t\xa0", 1, 4)
# The end of a phrase: no word goes on behind it. To be certain of that takes one character more.
_END: Final = Part(r"(?![A-Za-z0-9_])", r"\Z", 1)
_BOUNDARY: Final = r"(?<![A-Za-z0-9_])"


def _any_case(text: str) -> Part:
    part = literal(text)
    return Part(f"(?i:{part.whole})", f"(?i:{part.prefix})", part.longest)


def _words(text: str) -> Part:
    """Words in any case."""
    parts = [part for word in text.split() for part in (_GAP, _any_case(word))]
    return sequence(*parts[1:])


def _exactly(text: str) -> Part:
    """Words in this case only."""
    parts = [part for word in text.split() for part in (_GAP, literal(word))]
    return sequence(*parts[1:])


_NAME: Final = _any_case("Cascade")
_VENDOR: Final = either(_any_case("Codeium"), _any_case("Windsurf"))
_OWN_VENDOR: Final = sequence(
    either(literal("Codeium"), literal("Windsurf")),
    maybe(sequence(run("'\u2019", 1, 1), literal("s"))),
    _GAP,
)
_CASCADE: Final = literal("Cascade")
_ARTICLE: Final = either(_words("an"), _words("a"))
_MADE_BY: Final = sequence(literal(","), _GAP, _words("made by"), _GAP, _VENDOR)
_ASSISTANT: Final = either(
    sequence(literal(","), _GAP, _words("an AI coding assistant")),
    sequence(
        _GAP,
        _words("is"),
        _GAP,
        _ARTICLE,
        maybe(sequence(_GAP, _words("AI"))),
        maybe(sequence(_GAP, _words("coding"))),
        _GAP,
        _words("assistant"),
    ),
)
# Who made the assistant, which goes with the name even behind what kind of assistant it is.
_KIND_MADE_BY: Final = sequence(
    literal(","),
    _GAP,
    _ARTICLE,
    maybe(sequence(_GAP, _words("AI"))),
    maybe(sequence(_GAP, _words("coding"))),
    _GAP,
    _words("assistant"),
    _GAP,
    either(_words("made"), _words("developed"), _words("created"), _words("built")),
    _GAP,
    _words("by"),
    _GAP,
    _VENDOR,
)
_MADE: Final = either(_MADE_BY, _KIND_MADE_BY)
_ABOUT: Final = either(_MADE, _ASSISTANT)
# Behind "As Cascade" nobody else is spoken of: "As Cascade layers are ordered" is about something else.
_NO_OTHER: Final = Part(
    r"(?![A-Za-z0-9_]|[ \t\xa0]{1,4}(?!I(?![A-Za-z0-9_]))[A-Za-z0-9_])", r"(?:[ \t\xa0]{1,4}I?)?\Z", 6
)


def _phrase(*parts: Part) -> Part:
    return sequence(*parts, _END)


# In the order in which they are tried at one place; what says more comes first.
_CLAIM: Final = sequence(either(_words("I am"), _words("I'm"), _words("I\u2019m"), _words("my name is")), _GAP, _NAME)
_ROLE: Final = sequence(either(_exactly("As"), _exactly("Acting as")), _GAP, _CASCADE)
_OWNED: Final = sequence(_OWN_VENDOR, _CASCADE)
_PHRASES: Final = either(
    _phrase(_CLAIM, _MADE),
    _phrase(_CLAIM),
    _phrase(_ROLE, _ABOUT),
    sequence(_ROLE, _NO_OTHER),
    _phrase(_OWNED, _ABOUT),
    _phrase(_OWNED),
    _phrase(
        maybe(sequence(_words("the"), _GAP)),
        _NAME,
        maybe(sequence(run("'\u2019", 1, 1), _any_case("s"))),
        _GAP,
        _words("workspace"),
    ),
    _phrase(_NAME, _ABOUT),
    _phrase(either(_words("developed"), _words("created"), _words("built")), _GAP, _words("by"), _GAP, _VENDOR),
)

PHRASE: Final = re.compile(_BOUNDARY + _PHRASES.whole, re.ASCII)
BEGINNING: Final = re.compile(_BOUNDARY + _PHRASES.prefix, re.ASCII)
"""The beginning of a phrase at the end of a text; the empty one always is there."""
LONGEST: Final = _PHRASES.longest
FARTHEST_ANCHOR: Final = 24
"""How many characters of a phrase may stand before its first anchor."""

_MAKER_SAID: Final = re.compile(r"(?<=by)([ \t\xa0]+)(?:codeium|windsurf)\Z", re.IGNORECASE)
_KIND_SAID: Final = re.compile(r"an?[ \t\xa0]+(?:ai[ \t\xa0]+)?(?:coding[ \t\xa0]+)?assistant\Z", re.IGNORECASE)
_NAME_SAID: Final = re.compile(r"(?:(?:codeium|windsurf)(?:['\u2019]s)?[ \t\xa0]+)?cascade", re.IGNORECASE)
_PLACE_SAID: Final = re.compile(r"(the[ \t\xa0]+)?cascade(?:['\u2019]s)?[ \t\xa0]+(workspace)\Z", re.IGNORECASE)


def maker_of(model: str) -> str | None:
    """Who makes the model, told by the beginning of its name; None where nobody knows."""
    name = model.lower()
    return next((maker for beginning, maker in _MAKERS.items() if name.startswith(beginning)), None)


def rewritten(phrase: str, model: str, maker: str | None) -> str:
    """A phrase as the model says it. Without a known maker the one that is named stays."""
    place = _PLACE_SAID.match(phrase)
    if place:
        return f"{place[1] or 'the '}{place[2]}"
    if maker:
        phrase = _MAKER_SAID.sub(lambda said: said[1] + maker, phrase)
    phrase = _KIND_SAID.sub("an AI assistant", phrase)
    return _NAME_SAID.sub(lambda _: model, phrase, count=1)
