r"""Redaction: replaces paths of the planner's own machine by a marker, in a stream or in a whole text.

A whole token is replaced: a root, bounded on both sides, with all of the path after it. ``/opt/windsurf`` is found in
``see /opt/windsurf/bin``, not in ``/opt/windsurf-next`` and not in ``/srv/opt/windsurf``. Separators may be those of
Windows or mixed, and doubled as in JSON; a drive belongs to its path, ``file://`` stays. Roots are case sensitive; ids
in them are not.

Faults of the source that this module does not have: its roots had no right boundary (``/opt/windsurf-next`` became
``…-next``), ids in capitals were not redacted, nor were paths of Windows and strings nested in a tool's input, and the
punctuation that ends a sentence was treated as part of the path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.text.filters import Change, Changes, Part, either, literal, pack, run, sequence, unpack
from reknit.pipeline.text.jsontext import quoted

SOURCE_ROOTS: Final = (
    "/tmp/windsurf-workspace",  # noqa: S108  a path to look for, not one to write to
    "/home/user/projects/workspace-{id}",
    "/opt/windsurf",
    "/root/WindsurfAPI",
)
"""The directories of the source and its language server. ``{id}`` represents 1 to 64 ASCII letters and digits."""

MARKER: Final = "…"

_LONGEST_MARKER: Final = 16
# Characters with a meaning in a shell, separators of paths, and characters of names.
_NOT_IN_MARKERS: Final = re.compile(r"""[A-Za-z0-9_/\\|&;<>()$`"'*?\[\]#~=%{}!^]""")
_NAME: Final = r"A-Za-z0-9_\-"
_ID: Final = "{id}"
_LONGEST_ID: Final = 64
_SEPARATORS: Final = re.compile(r"[/\\]+")
# The end of a path: the source's own delimiters, control characters, and the same punctuation in full width.
_REST: Final = re.compile(
    r"""[^\s"'`<>)}\],*;\x00-\x1f\x7f\uff0c\uff1b\u3001\u3002\uff09\u3011\u300d\u300f\u300b\u201c\u201d\u2019]*+"""
)
# Punctuation that ends a sentence is not part of the path, and a backslash before a quote belongs to the quote.
_SENTENCE_END: Final = re.compile(r"[.!?:]*+\Z")
_ESCAPES: Final = re.compile(r"[.!?:]*+\\*+\Z")
_MOST_GIVEN_BACK: Final = 8
# The context before a token's first separator: a drive, or no character that a directory's name could end with. In JSON
# and in program text ``\n`` is two characters, and the second is not part of a name.
_START: Final = re.compile(r"(?:(?<![\w.~/\\])[A-Za-z]:|(?<![\w.~/\\])|(?<=file://)|(?<=\\[nrt]))\Z", re.ASCII)
_DRIVE: Final = re.compile(r"(?<![\w.~/\\])[A-Za-z]:?\Z", re.ASCII)
_LOOK_BEHIND: Final = 16
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# At most this much of a token is digested.
_MOST_KEPT: Final = 4_096


class _Saved(Struct, array_like=True):
    before: bytes
    held: bytes
    token: bytes | None
    rest: bytes
    changes: list[tuple[Change, int]]


class _State(Struct):
    before: str = ""  # the end of what was given out, for boundaries
    held: str = ""  # the prefix of a possible root
    token: str | None = None  # the beginning of the current token
    rest: str = ""  # the end of its path, as much of it as may be given back


class Redactor:
    """Takes text in pieces and returns it without the roots.

    The output does not depend on how the text is cut into pieces. Only the prefix of a possible root is held back (at
    most its length, with doubled separators, and three more characters). Of the path after it only the first 4,096
    characters are kept, for the digest.

    Args:
        roots: absolute paths, with ``{id}`` in place of an id.
        marker: replaces a token; 1 to 16 printable characters without a meaning in a shell, without a slash and without
            an ASCII letter, digit or underscore, so that it is not taken for a path.

    Raises:
        InputError: a root or the marker cannot be used (``bad_root``, ``bad_marker``).
    """

    def __init__(self, roots: Iterable[str] = SOURCE_ROOTS, marker: str = MARKER) -> None:
        if not 0 < len(marker) <= _LONGEST_MARKER or not marker.isprintable() or " " in marker:
            raise InputError("bad_marker", f"a marker is 1 to {_LONGEST_MARKER} printable characters: {marker!r}")
        if _NOT_IN_MARKERS.search(marker):
            raise InputError("bad_marker", f"a marker has no meaning in a path or a shell: {marker!r}")
        names = [_names(root) for root in dict.fromkeys(roots)]
        self.marker = marker
        self.changes = Changes()
        self._anchors = _anchors(names)
        known = either(*map(_known, names)) if names else Part("(?!)", r"\Z", 0)
        self._root = re.compile(known.whole + rf"(?=[/\\]|\.[^{_NAME}]|[^{_NAME}.])")
        self._last_root = re.compile(known.whole + rf"(?![{_NAME}]|\.[{_NAME}])")
        self._beginning = re.compile(sequence(known, Part("", r"\.?\Z", 1)).prefix)
        self._longest = known.longest + 2
        # No root reaches beyond one of these.
        self._breaks = [character for character in " \n" if not any(character in "".join(name) for name in names)]
        self._now = _State()

    def feed(self, text: str) -> str:
        """Take the next piece; return what can be shown."""
        return self._run(text, last=False)

    def flush(self) -> str:
        """Return the rest at the end of the text. The next feed is another text."""
        rest = self._run("", last=True)
        self._now = _State()
        return rest

    def whole(self, text: str) -> str:
        """A text of its own, all at once; what is being fed is left alone, changes are counted with it."""
        if not any(anchor in text for anchor in self._anchors):
            return text
        now, self._now = self._now, _State()
        redacted = self._run(text, last=True)
        self._now = now
        return redacted

    def value(self, value: Any) -> Any:  # noqa: ANN401  any JSON
        """A JSON value with every string in it redacted, keys too, at any depth; the rest as it is.

        Raises:
            InputError: it nests deeper than can be followed.
        """
        try:
            return self._value(value)
        except RecursionError:
            raise InputError("nested_too_deeply", "the value nests too deeply to be redacted") from None

    def json(self, text: str) -> str:
        """JSON text with every string in it redacted; numbers, order, duplicates and blanks stay as they are."""
        if "\\" not in text and not any(anchor in text for anchor in self._anchors):
            return text
        return _STRING.sub(self._token_of_json, text)

    def take_changes(self) -> dict[Change, int]:
        """Return the redactions since the last call, with their counts."""
        return self.changes.take_counts()

    def save(self) -> bytes:
        """The state, for `load` of a redactor with the same roots and marker."""
        now = self._now
        token = None if now.token is None else pack(now.token)
        return msgspec.msgpack.encode(
            _Saved(pack(now.before), pack(now.held), token, pack(now.rest), self.changes.save())
        )

    def load(self, data: bytes) -> None:
        """Restore a saved state."""
        saved = msgspec.msgpack.decode(data, type=_Saved)
        token = None if saved.token is None else unpack(saved.token)
        self._now = _State(unpack(saved.before), unpack(saved.held), token, unpack(saved.rest))
        self.changes.load(saved.changes)

    def _run(self, fed: str, *, last: bool) -> str:
        text = f"{self._now.before}{self._now.held}{fed}"
        at = len(self._now.before)
        shown: list[str] = []
        if self._now.token is not None:
            at = self._end_token(text, at, shown, last=last)
        if self._now.token is None:
            hold = len(text) if last else self._undecided(text, at)
            if _has_separator(text, at) and any(anchor in text for anchor in self._anchors):
                at, hold = self._replace_tokens(text, at, hold, shown, last=last)
            shown.append(text[at:hold])
            at = max(at, hold)
        self._now.before, self._now.held = text[max(0, at - _LOOK_BEHIND) : at], text[at:]
        return "".join(shown)

    def _replace_tokens(self, text: str, at: int, hold: int, shown: list[str], *, last: bool) -> tuple[int, int]:
        """Replace the tokens that begin before ``hold``; return where the text continues, and what to hold then."""
        root = self._last_root if last else self._root
        found = root.search(text, at)
        while found and found.start() < hold:
            start = _path_start(text, found.start(), at)
            if start is None:
                found = root.search(text, found.start() + 1)
                continue
            shown.append(text[at:start])
            self._now.token, self._now.rest = text[start : found.end()], ""
            at = self._end_token(text, found.end(), shown, last=last)
            if self._now.token is not None:
                return at, at
            if at > hold:
                hold = len(text) if last else self._undecided(text, at)
            found = root.search(text, at)
        return at, hold

    def _end_token(self, text: str, at: int, shown: list[str], *, last: bool) -> int:
        """Skip the path of the current token; write the marker at its end."""
        token = self._now.token or ""
        end = at
        # Directly after a root only a separator continues the path; other characters were checked with the root.
        if self._now.rest or text[at : at + 1] in {"/", "\\"}:
            found = _REST.match(text, at)
            end = found.end() if found else at
        self._now.rest = (self._now.rest + text[at:end])[-_MOST_GIVEN_BACK:]
        self._now.token = token + text[at : min(end, at + max(0, _MOST_KEPT - len(token)))]
        if end == len(text) and not last:
            return end
        ending = _ESCAPES if text[end : end + 1] in {'"', "'", "`"} else _SENTENCE_END
        given_back = ending.search(self._now.rest)
        kept = given_back[0] if given_back else ""
        self.changes.count_change("path_redacted", self._now.token.removesuffix(kept), self.marker)
        shown += self.marker, kept
        self._now.token = None
        return end

    def _undecided(self, text: str, at: int) -> int:
        """Return where the end of the text begins that may still become a root; its length if there is none."""
        low = max(at, len(text) - self._longest)
        if _has_separator(text, low):
            low = max(low, *(text.rfind(character, low) + 1 for character in self._breaks), low)
            found = self._beginning.search(text, low)
            while found and found.start() < len(text):
                start = _path_start(text, found.start(), at)
                if start is not None:
                    return start
                found = self._beginning.search(text, found.start() + 1)
        drive = _DRIVE.search(text, max(at, len(text) - 2))
        return drive.start() if drive else len(text)

    def _value(self, value: Any) -> Any:  # noqa: ANN401  any JSON
        if isinstance(value, str):
            return self.whole(value)
        if isinstance(value, dict):
            return {self._value(key): self._value(member) for key, member in value.items()}
        if isinstance(value, list | tuple):
            return [self._value(member) for member in value]
        return value

    def _token_of_json(self, token: re.Match[str]) -> str:
        try:
            text = json.loads(token[0], strict=False)
        except ValueError:  # an escape that JSON does not know
            return token[0]
        redacted = self.whole(text)
        return token[0] if redacted == text else quoted(redacted).encode("utf-8", "backslashreplace").decode()


def _has_separator(text: str, at: int) -> bool:
    return text.find("/", at) >= 0 or text.find("\\", at) >= 0


def _path_start(text: str, separator: int, floor: int) -> int | None:
    """Return the start of the token whose first separator is here, its drive included; None if no token can begin."""
    found = _START.search(text, max(floor, separator - 2), separator)
    return found.start() if found else None


def _names(root: str) -> list[str]:
    """The names in a root.

    Raises:
        InputError: code ``bad_root``.
    """
    path = re.sub(r"\A[A-Za-z]:(?=[/\\])", "", root)
    names = [name for name in _SEPARATORS.split(path) if name]
    if not _SEPARATORS.match(path) or not names or not root.isprintable():
        raise InputError("bad_root", f"a root is an absolute path with at least one name: {root!r}")
    return names


def _known(names: list[str]) -> Part:
    """The pattern of a root: a separator and a name, again and again."""
    first = Part(r"(?:\\{0,4}/|\\{1,4})", r"\\{0,4}\Z", 5)
    between = run(r"/\\", 1, 4)
    parts: list[Part] = []
    for name in names:
        parts.append(between if parts else first)
        for at, piece in enumerate(name.split(_ID)):
            parts += [run("A-Za-z0-9", 1, _LONGEST_ID)] * bool(at) + [literal(piece)] * bool(piece)
    return sequence(*parts)


def _anchors(roots: list[list[str]]) -> list[str]:
    """Return texts such that every text with a root contains at least one of them: the longest literal of each root."""
    found = {max((piece for name in names for piece in name.split(_ID)), key=len) for names in roots}
    return sorted(one for one in found if not any(other != one and other in one for other in found))
