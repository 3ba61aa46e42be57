"""Identity: replaces the planner's name for itself by the model's, in a stream or in a whole text.

Only self-reference is rewritten, never the word alone: "a cascade of rocks", ``ON DELETE CASCADE`` and "Windsurf" stay.
Only the name and the maker in a phrase change, so "i AM cascade" and "The Cascade workspace" keep their case. Words are
separated by blanks in one line: a phrase never spans paragraphs. Fenced code and JSON, which ``filters`` detects, stay
unchanged, because they are not the model's statements about itself.

Faults of the source that this module does not have: "I am Cascade, made by Windsurf" kept its maker, because one rule
removed the text that the next one searched for; a ``$&`` in a model's name was expanded.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

import msgspec
from msgspec import Struct

from reknit.pipeline.text.filters import (
    Change,
    Changes,
    Contexts,
    Part,
    SavedContexts,
    Span,
    either,
    literal,
    maybe,
    pack,
    run,
    sequence,
    unpack,
)

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

# Every phrase has one of these, in lower case.
ANCHORS: Final = (b"cascade", b"codeium", b"windsurf")
_GAP: Final = run(r" \t\xa0", 1, 4)
# The end of a phrase: no word character follows. This needs one more character to be certain.
_END: Final = Part(r"(?![A-Za-z0-9_])", r"\Z", 1)
_BOUNDARY: Final = r"(?<![A-Za-z0-9_])"


def _any_case(text: str) -> Part:
    part = literal(text)
    return Part(f"(?i:{part.whole})", f"(?i:{part.prefix})", part.longest)


def _words(text: str) -> Part:
    parts = [part for word in text.split() for part in (_GAP, _any_case(word))]
    return sequence(*parts[1:])


def _exactly(text: str) -> Part:
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
_KIND: Final = (
    _ARTICLE,
    maybe(sequence(_GAP, _words("AI"))),
    maybe(sequence(_GAP, _words("coding"))),
    _GAP,
    _words("assistant"),
)
_MADE_BY: Final = sequence(literal(","), _GAP, _words("made by"), _GAP, _VENDOR)
_ASSISTANT: Final = either(
    sequence(literal(","), _GAP, _words("an AI coding assistant")),
    sequence(_GAP, _words("is"), _GAP, *_KIND),
)
# The assistant's maker, which belongs to the name even after the kind of assistant.
_KIND_MADE_BY: Final = sequence(
    literal(","),
    _GAP,
    *_KIND,
    _GAP,
    either(_words("made"), _words("developed"), _words("created"), _words("built")),
    _GAP,
    _words("by"),
    _GAP,
    _VENDOR,
)
_MADE: Final = either(_MADE_BY, _KIND_MADE_BY)
_ABOUT: Final = either(_MADE, _ASSISTANT)
# After "As Cascade" the sentence must have no other subject: "As Cascade layers are ordered" is about something else.
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
    _phrase(_CLAIM, maybe(_MADE)),
    sequence(_ROLE, either(_phrase(_ABOUT), _NO_OTHER)),
    _phrase(_OWNED, maybe(_ABOUT)),
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
LONGEST: Final = _PHRASES.longest
FARTHEST_ANCHOR: Final = 24
"""The maximum number of characters of a phrase before its first anchor."""

_MAKER_SAID: Final = re.compile(r"(?<=by)([ \t\xa0]+)(?:codeium|windsurf)\Z", re.IGNORECASE)
_KIND_SAID: Final = re.compile(r"an?[ \t\xa0]+(?:ai[ \t\xa0]+)?(?:coding[ \t\xa0]+)?assistant\Z", re.IGNORECASE)
_NAME_SAID: Final = re.compile(r"(?:(?:codeium|windsurf)(?:['\u2019]s)?[ \t\xa0]+)?cascade", re.IGNORECASE)
_PLACE_SAID: Final = re.compile(r"(the[ \t\xa0]+)?cascade(?:['\u2019]s)?[ \t\xa0]+(workspace)\Z", re.IGNORECASE)


@cache
def beginning() -> re.Pattern[str]:
    """Return the pattern of a phrase's beginning at the end of a text; the empty one is always there.

    It takes a tenth of the time of all imports to compile, and only streams of one source use it.
    """
    return re.compile(_BOUNDARY + _PHRASES.prefix, re.ASCII)


def maker_of(model: str) -> str | None:
    """Return the model's maker, by the beginning of its name; None if it is unknown."""
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


_LOOK_BEHIND: Final = 4
# A text that ends in a prefix of one of these, or in the separators between words, may end in half a phrase.
_WORDS: Final = (
    *("i", "m", "am", "my", "name", "is", "as", "acting", "the", "workspace", "cascade", "codeium", "windsurf", "s"),
    *("a", "an", "ai", "coding", "assistant", "made", "developed", "created", "built", "by"),
)
_BEGINNINGS: Final = frozenset(word[:length] for word in _WORDS for length in range(1, len(word) + 1))
_OWNERS: Final = ("cascade", "codeium", "windsurf")
_VOCABULARY: Final = frozenset((*_WORDS, "", "i'm", *(f"{word}{mark}s" for word in _OWNERS for mark in "'\u2019")))
_LAST_WORD: Final = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z]{1,9}\Z")
_BLANK: Final = re.compile(r"[\t\xa0]")
_BETWEEN: Final = frozenset(" \t\xa0,'\u2019")


class _Saved(Struct, array_like=True):
    before: bytes
    held: bytes
    contexts: SavedContexts
    changes: list[tuple[Change, int]]


class IdentityRewriter:
    """Takes text in pieces and returns it with the model's name.

    The output does not depend on how the text is cut into pieces. Only a possible phrase, or a possible start or end of
    code or JSON, is held back: at most 70 characters.

    Args:
        model: the name to use. Without one, text passes unchanged. The beginning of the name determines the model's
            maker; if that is unknown, a named maker stays.
    """

    def __init__(self, model: str | None) -> None:
        self.model = model
        self.changes = Changes()
        self._maker = maker_of(model) if model else None
        self._reset()

    def feed(self, text: str) -> str:
        """Take the next piece; return what can be shown."""
        return self._run(text, last=False) if self.model else text

    def release(self) -> str:
        """Return the held text, because something else follows, such as a call.

        The text continues after it, in its code too.
        """
        rest = self._run("", last=True)
        self._before = "\n"
        return rest

    def flush(self) -> str:
        """Return the rest at the end of the text. The next feed is another text."""
        rest = self.release()
        self._contexts = Contexts()
        return rest

    def take_changes(self) -> dict[Change, int]:
        """Return the changes since the last call, with their counts."""
        return self.changes.take_counts()

    def save(self) -> bytes:
        """The state, for `load` of a rewriter for the same model."""
        saved = _Saved(pack(self._before), pack(self._held), self._contexts.save(), self.changes.save())
        return msgspec.msgpack.encode(saved)

    def load(self, data: bytes) -> None:
        """Restore a saved state."""
        saved = msgspec.msgpack.decode(data, type=_Saved)
        self._before, self._held = unpack(saved.before), unpack(saved.held)
        self._contexts = Contexts.load(saved.contexts)
        self.changes.load(saved.changes)

    def _run(self, fed: str, *, last: bool) -> str:
        text = f"{self._before}{self._held}{fed}"
        at = len(self._before)
        shown: list[str] = []
        for span in self._contexts.split(text, at, last=last):
            if not span.prose:
                shown.append(text[span.begin : span.end])
                at = span.end
                continue
            # Where other text follows, a phrase is at its end as well.
            goes_on = span.end == len(text) and not last
            hold = _undecided(text, span.begin) if goes_on else span.end
            at, hold = self._rewrite_phrases(text, span, hold, shown)
            shown.append(text[at:hold])
            at = max(at, hold)
        self._before, self._held = text[max(0, at - _LOOK_BEHIND) : at], text[at:]
        return "".join(shown)

    def _rewrite_phrases(self, text: str, span: Span, hold: int, shown: list[str]) -> tuple[int, int]:
        """Rewrite the phrases that begin before ``hold``; return where the text continues, and what to hold then."""
        at = span.begin
        for anchor in _anchors(text, span):
            if anchor < at:
                continue
            begin = max(at, anchor - FARTHEST_ANCHOR)
            found = PHRASE.search(text, begin, min(span.end, anchor + LONGEST + 1))
            if not found or not found.start() <= anchor or found.start() >= hold:
                continue
            phrase = rewritten(found[0], self.model or "", self._maker)
            if phrase != found[0]:
                self.changes.count_change("identity_renamed", found[0], phrase)
            shown += text[at : found.start()], phrase
            at = found.end()
            if at > hold:
                hold = _undecided(text, at)
        return at, hold

    def _reset(self) -> None:
        self._before = "\n"  # the end of what was given out, for boundaries; a text begins a line
        self._held = ""
        self._contexts = Contexts()


def _anchors(text: str, span: Span) -> list[int]:
    """Return the positions of words, in order; every phrase has one of these words."""
    # One byte for each character, so that positions are the same; the names are ASCII.
    lowered = text[span.begin : span.end].encode("ascii", "replace").lower()
    found: list[int] = []
    for anchor in ANCHORS:
        at = lowered.find(anchor)
        while at >= 0:
            found.append(span.begin + at)
            at = lowered.find(anchor, at + len(anchor))
    return sorted(found)


def _undecided(text: str, at: int) -> int:
    """Return where the end of the text begins that may still become a phrase; its length if there is none."""
    if text[-1:] not in _BETWEEN:
        word = _LAST_WORD.search(text, max(0, len(text) - 12))
        if not word or word[0].lower() not in _BEGINNINGS:
            return len(text)
    # Back to the last word that is in no phrase; other characters may precede a phrase's first word.
    low = max(at, len(text) - LONGEST)
    *words, last = text[low:].split(" ")
    begin = len(text) - len(last)
    for word_before in reversed(words):
        begin -= len(word_before) + 1
        if word_before.rstrip("\t\xa0,").lower() not in _VOCABULARY and not _BLANK.search(word_before):
            break
    found = beginning().search(text, max(low, begin))
    return found.start() if found else len(text)
