"""JSON that ends in the middle: a line that a killed program did not finish, read up to its end.

If another program wrote on after it, the line has two parts, and the second is whole (`whole_tail`).

A cut line has many readings: with the text in which it ends, without it, without the object that holds the text, and so
on outwards. `read_cut` returns the first that its shape can use. Only texts may end at the cut. Half an id, a name or a
signature would be another one, and is left out with the object that needs it. The input of a call is neither closed
nor parsed: it becomes a string of the JSON so far, which readers take for an input that a model did not finish.

Everything here runs in time linear in the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.history.readers.lines import members_of, utf8_prefix
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import decoded

Place: TypeAlias = tuple[str | int, ...]
"""The names and indexes that lead to a value."""

_BLANK: Final = re.compile(rb"[ \t\r\n]*")
_IN_STRING: Final = rb'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+'
_STRING: Final = re.compile(rb'"' + _IN_STRING + rb'"')
_CUT_STRING: Final = re.compile(rb'"(' + _IN_STRING + rb")(?:\\(?:u[0-9a-fA-F]{0,3})?)?\Z")
_SCALAR: Final = re.compile(rb"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
# The beginning of a literal or a number, at the end of the text.
_CUT_SCALAR: Final = re.compile(rb"(?:t|tr|tru|f|fa|fal|fals|n|nu|nul|-?[0-9]*\.?[0-9]*(?:[eE][+-]?[0-9]*)?)\Z")
# The beginnings of the lines that programs write. Each try reads the rest of the line once.
_BEGINS: Final = re.compile(rb'\{"(?:parentUuid|type|timestamp|id|sessionId|\$set|\$rewindTo)":')
_MOST_TRIES: Final = 8
# No shape has a text that is nested more deeply than this.
_MOST_READINGS: Final = 16
_LIST: Final = msgspec.json.Decoder(list[Raw])
_TEXT: Final = msgspec.json.Decoder(str)


class Needs(Struct, frozen=True):
    """The use of a shape for objects that were cut.

    Attributes:
        texts: the members whose text may end at the cut.
        types: the members that an object of a type needs.
        members: the choices of members that an object without such a type needs, by the member that holds it.
        opaque: the members that hold a call's input.
    """

    texts: frozenset[str]
    types: Mapping[str, frozenset[str]]
    members: Mapping[str, Sequence[frozenset[str]]] = {}
    opaque: frozenset[str] = frozenset()


class Cut(Struct, frozen=True):
    """One reading of a cut line.

    Attributes:
        data: the JSON of it.
        place: the value that was cut.
        in_text: it is a text, which ends at the cut.
    """

    data: bytes
    place: Place
    in_text: bool = False


class _Container(Struct):
    """An object or a list that is open: its bracket's offset, the end of its last whole member, and its open one."""

    begin: int
    whole: int
    is_list: bool
    key: str | int


class _BadJsonError(Exception):
    """The text is no JSON before its end."""


class _Scanner:
    """Reads JSON up to the end of the text.

    Attributes:
        open: the containers that are open there, the outermost first.
        value: where the value begins that is not whole there; -1 if every value is whole, or only a name is there.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text
        self._at = 0
        self.open: list[_Container] = []
        self.value = -1

    def scan(self) -> bool:
        """Return True if the text ends inside an object or a list, and is JSON up to there."""
        step = "value"
        try:
            while self._skip_blanks():
                step = _STEPS[step](self)
                if not self.open:
                    return False
        except _BadJsonError:
            return False
        return bool(self.open)

    def _skip_blanks(self) -> bool:
        found = _BLANK.match(self._text, self._at)
        self._at = self._at if found is None else found.end()
        return self._at < len(self._text)

    def _take(self, pattern: re.Pattern[bytes], cut: re.Pattern[bytes]) -> bytes | None:
        """Take a token; None if the text ends inside it."""
        found = pattern.match(self._text, self._at)
        # A number at the end of the text may have more digits.
        if found is not None and (found.end() < len(self._text) or pattern is _STRING):
            self._at = found.end()
            return found[0]
        if found is None and cut.match(self._text, self._at) is None:
            raise _BadJsonError
        self._at = len(self._text)
        return None

    def take_value(self) -> str:
        char, begin = self._text[self._at : self._at + 1], self._at
        if char in (b"{", b"["):
            self._at += 1
            self.open.append(_Container(begin, self._at, char == b"[", 0 if char == b"[" else ""))
            return "item or end" if char == b"[" else "name or end"
        if not self.open:
            raise _BadJsonError
        token = self._take(_STRING, _CUT_STRING) if char == b'"' else self._take(_SCALAR, _CUT_SCALAR)
        if token is None:
            self.value = begin
        else:
            self.open[-1].whole = self._at
        return "after"

    def take_name(self) -> str:
        token = self._take(_STRING, _CUT_STRING)
        name = "" if token is None else decoded(_TEXT, token)
        if name is None:
            raise _BadJsonError
        self.open[-1].key = name
        return "colon"

    def take_colon(self) -> str:
        if self._text[self._at : self._at + 1] != b":":
            raise _BadJsonError
        self._at += 1
        return "value"

    def take_first_item(self) -> str:
        return self.take_end() if self._text[self._at : self._at + 1] == b"]" else self.take_value()

    def take_first_name(self) -> str:
        return self.take_end() if self._text[self._at : self._at + 1] == b"}" else self.take_name()

    def take_after(self) -> str:
        if self._text[self._at : self._at + 1] != b",":
            return self.take_end()
        self._at += 1
        inner = self.open[-1]
        if isinstance(inner.key, int):
            inner.key += 1
        return "value" if inner.is_list else "name"

    def take_end(self) -> str:
        if self._text[self._at : self._at + 1] != (b"]" if self.open[-1].is_list else b"}"):
            raise _BadJsonError
        self._at += 1
        self.open.pop()
        if self.open:
            self.open[-1].whole = self._at
        return "after"


_STEPS: Final[Mapping[str, Callable[[_Scanner], str]]] = {
    "value": _Scanner.take_value,
    "item or end": _Scanner.take_first_item,
    "name or end": _Scanner.take_first_name,
    "name": _Scanner.take_name,
    "colon": _Scanner.take_colon,
    "after": _Scanner.take_after,
}


def read_cut(raw: bytes, needs: Needs) -> Cut | None:
    """Return the longest reading of a cut line that a shape can use.

    None for a line that is whole, is damaged before its end, or has nothing that can be used.
    """
    # The line may end in the middle of a character.
    text = utf8_prefix(raw.rstrip(b"\0"))
    scanner = _Scanner(text)
    if not scanner.scan():
        return None
    return next((cut for cut in _readings(text, scanner, needs) if _is_usable(cut, needs)), None)


def whole_tail(raw: bytes, marks: frozenset[str]) -> bytes | None:
    """Return the whole line at the end of a line that cannot be read, or None.

    A program that was killed while it wrote leaves half a line, and the next one may write directly after it.

    Args:
        raw: a line that is no JSON.
        marks: a whole line has one of these members.
    """
    begins = [found.start() for found in _BEGINS.finditer(raw, 1)]
    if not begins or _Scanner(raw).scan():
        return None  # it ends in the middle, and is one line
    for begin in begins[: -_MOST_TRIES - 1 : -1]:
        if not marks.isdisjoint(members_of(raw[begin:]) or ()):
            return raw[begin:]
    return None


def _readings(text: bytes, scanner: _Scanner, needs: Needs) -> Iterator[Cut]:
    """Yield the readings, the longest first."""
    place = tuple(container.key for container in scanner.open)
    depth = next((at for at, name in enumerate(place[:-1]) if name in needs.opaque), None)
    if depth is not None:
        begin = scanner.open[depth + 1].begin
        written = msgspec.json.encode(text[begin:].decode())
        yield Cut(text[:begin] + written + _closing(scanner.open[: depth + 1]), place[: depth + 1])
        scanner.open = scanner.open[: depth + 1]
    elif scanner.value >= 0 and (found := _CUT_STRING.match(text, scanner.value)) is not None and found[1]:
        yield Cut(text[: scanner.value] + b'"' + found[1] + b'"' + _closing(scanner.open), place, in_text=True)
    for count in range(min(len(scanner.open), _MOST_READINGS), 0, -1):
        kept = scanner.open[:count]
        if kept[-1].whole == kept[-1].begin + 1:
            continue  # nothing in it is whole
        yield Cut(text[: kept[-1].whole] + _closing(kept), place[: count - 1])


def _closing(containers: Sequence[_Container]) -> bytes:
    return b"".join(b"]" if container.is_list else b"}" for container in reversed(containers))


def _is_usable(cut: Cut, needs: Needs) -> bool:
    """Return True if every object around the cut has what it needs, and a text that ends there is one."""
    names = [step for step in cut.place if isinstance(step, str)]
    if cut.in_text and (not names or names[-1] not in needs.texts):
        return False
    value, within = Raw(cut.data), ""
    for step in (*cut.place, None):
        if starts_with(value, b"{"):
            members = members_of(value)
            if members is None or not _has_needs(members, within, needs):
                return False
            if step is None:
                return True
            if isinstance(step, int) or step not in members:
                return False
            value, within = members[step], step
        elif isinstance(step, int) and starts_with(value, b"["):
            value = _LIST.decode(value)[step]
        else:
            return step is None
    return False


def _has_needs(members: Mapping[str, Raw], within: str, needs: Needs) -> bool:
    """Return True if an object has what its type needs, or its member; the outermost one may be of any type."""
    kind = decoded(_TEXT, members["type"]) if "type" in members else None
    if kind is not None and kind in needs.types:
        return needs.types[kind] <= members.keys()
    return not within or any(choice <= members.keys() for choice in needs.members.get(within, ()))
