"""Identity: the planner's name for itself becomes the model's, in a stream as in a whole text.

The phrases are in ``phrases``. Fenced code and JSON are left alone, which ``contexts`` tells: what a program says is
not what the model says of itself.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec
from msgspec import Struct

from pipeline.text.changes import Change, Changes, pack, unpack
from pipeline.text.contexts import Contexts, SavedContexts, Span
from pipeline.text.phrases import ANCHORS, BEGINNING, FARTHEST_ANCHOR, LONGEST, PHRASE, maker_of, rewritten

_LOOK_BEHIND: Final = 4
# A text that ends in the beginning of one of these, or in what stands between words, may end in half a phrase.
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
    """Takes text in pieces and gives it back with the model's name in it.

    ``feed`` and ``flush`` of any pieces give what they would give of all in one. Held back is only what may become a
    phrase, or may open or close code or JSON: at most 70 characters.

    Args:
        model: the name to speak under, as it is to be read. Without one, text goes through as it is. Who made the
            model is told by the beginning of the name; where that is unknown, a maker that is named stays.
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
        """Something else follows, such as a call: return what is held. The text goes on behind it, in its code too."""
        rest = self._run("", last=True)
        self._before = "\n"
        return rest

    def flush(self) -> str:
        """The text is at its end: return the rest. What is fed next is another text."""
        rest = self.release()
        self._contexts = Contexts()
        return rest

    def take_changes(self) -> dict[Change, int]:
        """What was rewritten since this was last asked, and how often."""
        return self.changes.take()

    def save(self) -> bytes:
        """The state, for `load` of a rewriter for the same model."""
        saved = _Saved(pack(self._before), pack(self._held), self._contexts.save(), self.changes.save())
        return msgspec.msgpack.encode(saved)

    def load(self, data: bytes) -> None:
        """Go on from a saved state."""
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
            at, hold = self._rewrite(text, span, hold, shown)
            shown.append(text[at:hold])
            at = max(at, hold)
        self._before, self._held = text[max(0, at - _LOOK_BEHIND) : at], text[at:]
        return "".join(shown)

    def _rewrite(self, text: str, span: Span, hold: int, shown: list[str]) -> tuple[int, int]:
        """Rewrite the phrases that begin before ``hold``; return where the text goes on and what to hold then."""
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
                self.changes.add("identity_renamed", found[0], phrase)
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
    """Where words stand that every phrase has one of, in order."""
    # One byte a character, so that places are the same; a word in other letters is none of ours.
    lowered = text[span.begin : span.end].encode("ascii", "replace").lower()
    found: list[int] = []
    for anchor in ANCHORS:
        at = lowered.find(anchor)
        while at >= 0:
            found.append(span.begin + at)
            at = lowered.find(anchor, at + len(anchor))
    return sorted(found)


def _undecided(text: str, at: int) -> int:
    """Where the end of the text begins that may still become a phrase; its length where there is no such end."""
    if text[-1:] not in _BETWEEN:
        word = _LAST_WORD.search(text, max(0, len(text) - 12))
        if not word or word[0].lower() not in _BEGINNINGS:
            return len(text)
    # Up to words of phrases, from the last that is none; in front of a phrase's first word other signs may stand.
    low = max(at, len(text) - LONGEST)
    *words, last = text[low:].split(" ")
    begin = len(text) - len(last)
    for word_before in reversed(words):
        begin -= len(word_before) + 1
        if word_before.rstrip("\t\xa0,").lower() not in _VOCABULARY and not _BLANK.search(word_before):
            break
    found = BEGINNING.search(text, max(low, begin))
    return found.start() if found else len(text)
