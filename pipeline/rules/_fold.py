"""The fold over one list in a request's body, how its text is read, and what it carries from one item to the next.

A typed decode is the fast path. Only what it refuses is read as plain values, by the rule set's own tolerant reader;
what is wrong with text that is not JSON is said as a provider's front door does.
"""

from __future__ import annotations

import json
import re
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Generic, NoReturn, Self, TypeVar

import msgspec
from msgspec import Raw, Struct, StructMeta, field, structs

from reknit.pipeline.rules.base import Family, Rule, Violation

_BODY = msgspec.json.Decoder(dict[str, Raw])
_VALUE = msgspec.json.Decoder()
# Errors of a typed decode of text that it cannot read. Nesting costs stack, so there is a third.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NO_FAMILY = Family("")
# Heads whose judgement is kept: the conversations of an agent have the same system prompt and tools. Measured for a new
# request of 25 kB after a head of 84 kB with 26 tools: 1.4 ms instead of 1.9 ms.
_HEADS = 16


class _AbstractStruct(StructMeta, ABCMeta):
    """Structs whose classes may have abstract methods."""


class Walk(Struct, metaclass=_AbstractStruct, kw_only=True, eq=False):
    """A rule set on its way through a request: its state after ``index`` items, and the violations of this step.

    Between two steps a walk is an immutable state: the next step begins with a ``fork``.

    Attributes:
        family: the known properties of the model.
        index: the current item; between two steps, the number of items.
        chars: the number of characters before the next item, if the list is the body's last key.
        size: the number of bytes of the body.
        surrogate: a lone surrogate was reported.
        broken: the text could not be read any further, and nothing more is reported.
        found: the violations of this step.
    """

    family: Any = _NO_FAMILY
    index: int = 0
    chars: int = 0
    size: int = 0
    surrogate: bool = False
    broken: bool = False
    found: list[Violation] = field(default_factory=list)

    def fork(self) -> Self:
        """Return another walk that continues from here.

        A subclass copies what it changes in place; this one stays unchanged.
        """
        return structs.replace(self, found=[])

    @abstractmethod
    def judge_item(self, item: Any) -> None:  # noqa: ANN401  a subclass knows its items
        """Judge the item at ``index``."""

    @abstractmethod
    def judge_end(self) -> None:
        """Judge what only the end of the items shows."""

    def judge_items(self, items: Sequence[Any]) -> None:
        """Judge the next items; None is one that could not be read and was reported already."""
        for item in items:
            if item is not None:
                self.judge_item(item)
            self.index += 1

    def refuse(self, rule: Rule, path: str, **values: object) -> None:
        """Report a breach of a rule.

        Where the rule rests on a fact, it is hard for a family that is known to refuse this, and nothing for one that
        is known to take it.
        """
        if not rule.fact:
            self.found.append(rule.broken(path, None, **values))
            return
        takes = getattr(self.family, rule.fact)
        if takes is not True:
            self.found.append(rule.broken(path, "model" if takes is None else "hard", **values))

    def refuse_where_known(self, rule: Rule, path: str, **values: object) -> None:
        """Report a breach of a rule only for a family that is known to refuse this."""
        if getattr(self.family, rule.fact) is False:
            self.found.append(rule.broken(path, "hard", **values))


W = TypeVar("W", bound=Walk)
Item = TypeVar("Item")


class Fold(ABC, Generic[W, Item]):
    """A rule set whose messages are the items of the list ``key``; a subclass says what the rules are."""

    target: str
    key: ClassVar[str]
    model_key: ClassVar[str] = "model"
    not_json: ClassVar[Rule]
    surrogate: ClassVar[Rule]
    items: ClassVar[msgspec.json.Decoder[Any]]  # of a list of Item

    @abstractmethod
    def begin_walk(self, head: dict[str, Any], model: str | None) -> W:
        """Judge the body without the list; ``model`` is the one that was given, or that the head names."""

    @abstractmethod
    def read_item(self, value: object, path: str, walk: W) -> Item | None:
        """Make an item of a JSON value tolerantly, and report what does not fit; None where it could not be read."""

    @abstractmethod
    def judge_no_list(self, walk: W, body: dict[str, Any]) -> None:
        """Judge a body whose ``key`` is missing, or is no list."""

    def refuse_text(self, walk: W, bad: BadJSON | None, before: int) -> None:
        """Report text that is not JSON, or, without ``bad``, not an object; ``before`` characters precede it."""
        del bad, before
        walk.refuse(self.not_json, "")

    def refuse_half(self, walk: W, bad: BadJSON, text: str, path: str, before: int) -> None:
        del bad, text, before
        walk.refuse(self.surrogate, path)

    def judge_head(self, head: bytes, model: str | None = None) -> tuple[W, list[Violation]]:
        """Judge a request without its items; positions assume that the list will be its last key."""
        walk = _walk_after_head(self, head, model)
        return walk.fork(), [*walk.found]

    def _judge_new_head(self, head: bytes, model: str | None) -> W:
        values, bad = _read_bytes(head)
        if not isinstance(values, dict):
            return self._walk_of_no_object(bad, model)[0]
        walk = self._walk_after(values, model)
        joint = len(f',"{self.key}":[') - (not values)
        text = head.decode()
        walk.chars, walk.size = len(text) - 1 + joint, len(head) + joint + 1
        if bad is not None:
            self.refuse_half(walk, bad, text, surrogate_path(values), 0)
            walk.surrogate = True
        return walk

    def judge_messages(self, state: W, messages: bytes) -> tuple[W, list[Violation]]:
        """Judge more items; the cost is theirs alone, however long the history."""
        if state.broken or not messages.strip():
            return state, []
        array = b"".join((b"[", messages, b"]"))
        walk = state.fork()
        walk.size += len(messages) + (1 if state.index else 0)
        try:
            chars = len(messages) if messages.isascii() else len(messages.decode())
            items = self.items.decode(array)
        except _UNREADABLE:
            self._judge_slowly(walk, array)
        else:
            walk.judge_items(items)
            walk.chars += chars + 1
        return walk, walk.found

    def _judge_slowly(self, walk: W, array: bytes) -> None:
        values, bad = _read_bytes(array)
        if not isinstance(values, list):
            walk.broken = True
            if not walk.surrogate:
                # The bracket before the items was added here.
                place = bad or BadJSON("unexpected data", 0)
                self.refuse_text(walk, BadJSON(place.reason, max(place.at - 1, 0)), walk.chars)
            return
        before = walk.index
        text = array[1:-1].decode()
        walk.judge_items(self._read_items(values, walk))
        if bad is not None and not walk.surrogate:
            path = surrogate_path({self.key: [None] * before + values})
            self.refuse_half(walk, BadJSON(bad.reason, bad.at - 1), text, path, walk.chars)
            walk.surrogate = True
        walk.chars += len(text) + 1

    def judge_end(self, state: W) -> list[Violation]:
        if state.broken:
            return []
        walk = state.fork()
        walk.judge_end()
        return walk.found

    def validate(self, body: bytes, model: str | None = None) -> list[Violation]:
        try:
            if not body.isascii():
                body.decode()  # members that are only cut out are not looked at: bytes that are no UTF-8 would pass
            raw = _BODY.decode(body)
            items = self.items.decode(raw.pop(self.key, b""))
            head = {name: _VALUE.decode(value) for name, value in raw.items()}
        except _UNREADABLE:
            return self._validate_slowly(body, model)
        walk = self._walk_after(head, model)
        walk.size = len(body)
        walk.judge_items(items)
        walk.judge_end()
        return walk.found

    def _validate_slowly(self, body: bytes, model: str | None) -> list[Violation]:
        values, bad = _read_bytes(body)
        if not isinstance(values, dict):
            return self._walk_of_no_object(bad, model)[1]
        walk = self._walk_after(values, model)
        walk.size = len(body)
        if bad is not None:
            self.refuse_half(walk, bad, body.decode(), surrogate_path(values), 0)
        listed = values.get(self.key)
        if not isinstance(listed, list):
            self.judge_no_list(walk, values)
            return walk.found
        walk.judge_items(self._read_items(listed, walk))
        walk.judge_end()
        return walk.found

    def _read_items(self, values: Sequence[object], walk: W) -> list[Item | None]:
        return [self.read_item(value, f"{self.key}.{at}", walk) for at, value in enumerate(values, walk.index)]

    def _walk_after(self, values: dict[str, Any], model: str | None) -> W:
        head = {name: value for name, value in values.items() if name != self.key}
        named = head.get(self.model_key)
        return self.begin_walk(head, model if model is not None else named if isinstance(named, str) else None)

    def _walk_of_no_object(self, bad: BadJSON | None, model: str | None) -> tuple[W, list[Violation]]:
        """A walk that leads nowhere, since the body is no JSON object."""
        walk = self._walk_after({}, model)
        walk.found = []
        walk.broken = True
        self.refuse_text(walk, bad, 0)
        return walk, walk.found


@lru_cache(maxsize=_HEADS)
def _walk_after_head(rules: Fold[W, Any], head: bytes, model: str | None) -> W:
    """Return the walk after a head. Nothing may change it: callers get a fork."""
    return rules._judge_new_head(head, model)  # noqa: SLF001  a function of the class, kept for equal arguments


def _read_bytes(data: bytes) -> tuple[object, BadJSON | None]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None, BadJSON("str is not valid UTF-8: surrogates not allowed", 0)
    return read_json(text)


_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)", re.DOTALL)


class BadJSON(Struct, frozen=True):
    """Why a text is not valid JSON. ``at`` counts characters from 0; ``fatal`` means that it could not be read."""

    reason: str
    at: int
    fatal: bool = True

    def place(self, text: str = "", before: int = 0) -> str:
        """Name the place as decoders do; ``before`` characters on the same line precede ``text``."""
        line = text.count("\n", 0, self.at) + 1
        column = self.at - text.rfind("\n", 0, self.at) + (before if line == 1 else 0)
        return f"{self.reason}: line {line} column {column} (char {self.at + before})"


def read_json(text: str) -> tuple[object, BadJSON | None]:
    """Read JSON as far as that is possible: lone surrogates are kept, and named as what is wrong with the text."""
    if text.startswith("\ufeff"):
        return None, BadJSON("unexpected UTF-8 BOM (decode using utf-8-sig)", 0)
    try:
        value: object = _decode(text)
    except json.JSONDecodeError as error:
        return None, BadJSON(error.msg[:1].lower() + error.msg[1:], error.pos)
    except RecursionError:
        return None, BadJSON("recursion limit reached", 0)
    except ValueError as error:  # NaN, Infinity, an integer of more digits than Python converts
        return None, BadJSON(str(error), 0)
    return value, lone_surrogate(text)


def lone_surrogate(text: str) -> BadJSON | None:
    """Find the first escape that is half a surrogate pair; the words are those of the provider's decoder, orjson."""
    if "\\ud" not in text and "\\uD" not in text:
        return None
    high: re.Match[str] | None = None
    for escape in _ESCAPE.finditer(text):
        if high is not None and escape.start() != high.end():
            return _half("no low surrogate in string", high)
        unit = int(escape[1], 16) if escape[1] else 0
        is_low = 0xDC00 <= unit <= 0xDFFF
        if high is not None:
            if not is_low:
                reason = "invalid low surrogate in string" if escape[1] else "no low surrogate in string"
                return _half(reason, high)
            high = None
        elif is_low:
            return _half("invalid high surrogate in string", escape)
        elif 0xD800 <= unit <= 0xDBFF:
            high = escape
    return _half("no low surrogate in string", high) if high is not None else None


def surrogate_path(value: object, path: str = "") -> str:
    """Return the first place in document order that holds a lone surrogate, in dots; "" if there is none."""
    left: list[tuple[str, object]] = [(path, value)]
    while left:
        at, item = left.pop()
        if isinstance(item, str):
            if not item.isascii() and any("\ud800" <= char <= "\udfff" for char in item):
                return at
        elif isinstance(item, dict):
            keys = [(f"{at}.{key}".lstrip("."), key) for key in item]
            values = [(f"{at}.{key}".lstrip("."), inner) for key, inner in item.items()]
            left += [pair for both in zip(reversed(values), reversed(keys), strict=True) for pair in both]
        elif isinstance(item, list):
            left += [(f"{at}.{place}".lstrip("."), inner) for place, inner in reversed([*enumerate(item)])]
    return ""


def _half(reason: str, escape: re.Match[str]) -> BadJSON:
    return BadJSON(reason, escape.start(), fatal=False)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"unexpected character, expected a JSON value ({name})")


# ``json.loads`` would make a decoder each time that it is given a function.
_decode = json.JSONDecoder(parse_constant=_refuse).decode
