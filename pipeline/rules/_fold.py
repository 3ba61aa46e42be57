"""The fold over one list in a request's body, for providers whose own words name no position in the text.

A typed decode is the fast path. Only what it refuses is read as plain values, by the rule set's own tolerant reader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from pipeline.rules import _json
from pipeline.rules._json import BadJSON
from pipeline.rules.base import Rule, Violation

Inner = TypeVar("Inner")
Item = TypeVar("Item")

_BODY = msgspec.json.Decoder(dict[str, Raw])
_VALUE = msgspec.json.Decoder()
# What a typed decode raises for text that it cannot read. Nesting costs stack, so there is a third.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Progress(Struct, Generic[Inner], frozen=True):
    """The state after ``index`` items: what the rules know, and what was wrong with the text so far.

    ``surrogate`` means that half a surrogate pair was reported; ``broken`` that the text could not be read on, and
    nothing more is said.
    """

    inner: Inner
    index: int = 0
    surrogate: bool = False
    broken: bool = False


class Fold(ABC, Generic[Inner, Item]):
    """A rule set whose messages are the items of the list ``key``; a subclass says what the rules are."""

    target: str
    key: ClassVar[str]
    not_json: ClassVar[Rule]
    surrogate: ClassVar[Rule]
    items: ClassVar[msgspec.json.Decoder[Any]]  # of a list of Item

    @abstractmethod
    def judge_head(self, head: dict[str, Any], model: str | None) -> tuple[Inner, list[Violation]]:
        """Judge the body without the list, and say what the rules on its items need to know of it."""

    @abstractmethod
    def read(self, values: Sequence[object], index: int) -> tuple[list[Item | None], list[Violation]]:
        """Make items of JSON values, the first being number ``index``; None is one that could not be read."""

    @abstractmethod
    def walk(self, inner: Inner, items: Sequence[Item | None], index: int) -> tuple[Inner, list[Violation]]:
        """Judge items, the first being number ``index``."""

    @abstractmethod
    def judge_end(self, inner: Inner, count: int) -> list[Violation]:
        """Judge what only the end of ``count`` items shows."""

    @abstractmethod
    def judge_no_list(self, body: dict[str, Any], inner: Inner) -> list[Violation]:
        """Judge a body whose ``key`` is missing, or is no list."""

    def start(self, head: bytes, model: str | None = None) -> tuple[Progress[Inner], list[Violation]]:
        """Judge a request without its items."""
        values, bad = _read(head)
        if not isinstance(values, dict):
            return Progress(self.judge_head({}, model)[0], broken=True), [self.not_json.broken("")]
        inner, found = self.judge_head(_without(values, self.key), model)
        if bad is not None:
            found.append(self.surrogate.broken(_json.surrogate_path(values)))
        return Progress(inner, surrogate=bad is not None), found

    def step(self, state: Progress[Inner], messages: bytes) -> tuple[Progress[Inner], list[Violation]]:
        """Judge more items; the cost is theirs alone, however long the history."""
        if state.broken or not messages.strip():
            return state, []
        array = b"".join((b"[", messages, b"]"))
        try:
            if not messages.isascii():
                messages.decode()
            items = self.items.decode(array)
        except _UNREADABLE:
            return self._step_slowly(state, array)
        inner, found = self.walk(state.inner, items, state.index)
        return replace(state, inner=inner, index=state.index + len(items)), found

    def _step_slowly(self, state: Progress[Inner], array: bytes) -> tuple[Progress[Inner], list[Violation]]:
        values, bad = _read(array)
        if not isinstance(values, list):
            return replace(state, broken=True), [] if state.surrogate else [self.not_json.broken("")]
        items, found = self.read(values, state.index)
        inner, more = self.walk(state.inner, items, state.index)
        if bad is not None and not state.surrogate:
            more.append(self.surrogate.broken(_json.surrogate_path({self.key: [None] * state.index + values})))
        torn = state.surrogate or bad is not None
        return replace(state, inner=inner, index=state.index + len(items), surrogate=torn), found + more

    def finish(self, state: Progress[Inner]) -> list[Violation]:
        """Judge the end of the request."""
        return [] if state.broken else self.judge_end(state.inner, state.index)

    def validate(self, body: bytes, model: str | None = None) -> list[Violation]:
        """Judge a whole body."""
        try:
            if not body.isascii():
                body.decode()
            raw = _BODY.decode(body)
            items = self.items.decode(raw.pop(self.key, b""))
            head = {name: _VALUE.decode(value) for name, value in raw.items()}
        except _UNREADABLE:
            return self._validate_slowly(body, model)
        inner, found = self.judge_head(head, model)
        inner, more = self.walk(inner, items, 0)
        return [*found, *more, *self.judge_end(inner, len(items))]

    def _validate_slowly(self, body: bytes, model: str | None) -> list[Violation]:
        values, bad = _read(body)
        if not isinstance(values, dict):
            return [self.not_json.broken("")]
        inner, found = self.judge_head(_without(values, self.key), model)
        if bad is not None:
            found.append(self.surrogate.broken(_json.surrogate_path(values)))
        listed = values.get(self.key)
        if not isinstance(listed, list):
            return found + self.judge_no_list(values, inner)
        items, misfits = self.read(listed, 0)
        inner, more = self.walk(inner, items, 0)
        return [*found, *misfits, *more, *self.judge_end(inner, len(items))]


def _without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


def _read(data: bytes) -> tuple[object, BadJSON | None]:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None, BadJSON("not UTF-8", 0)
    return _json.read(text)
