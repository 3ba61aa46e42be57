"""Aligns an input history with the published body: a row for each block, with its fixes.

The page is computed by the worker's own code: its stage takes the session's records up to the one that made the request
due, and the ledger has the place of every block. If that gives another body than the published one, for example because
its beginning is missing, both sides are shown unaligned, by position.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

import msgspec
from msgspec import Struct, structs

from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.pieces import LedgerEntry, block_path
from reknit.pipeline.model import Block, ToolResult, ToolUse, Turn, on_the_wire
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.session import Normalized, Session
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.targets import Setting
from reknit.pipeline.viewer.cells import (
    Cell,
    Document,
    How,
    Mark,
    Row,
    cell_of,
    mark_of,
    members_of,
    plain,
    value_at,
    words_of,
)

_HOW: dict[str, How] = {
    "kept": "same",
    "rewritten": "changed",
    "flattened": "changed",
    "moved": "moved",
    "dropped": "vanished",
    "synthesised": "appeared",
}
# The members of a setting that a request's head is made from.
_HEAD = ("system", "tools", "model", "params")
# The lists of messages in bodies.
LISTS = ("messages", "input", "contents")


def session_until(records: Sequence[Record], key: bytes, cause: int, defaults: Defaults) -> Session | None:
    """Return the session after the record at the offset ``cause`` was taken, or None.

    ``records`` are all of the session's, in order, from the one that began it. The record that repairs a parked session
    takes effect at the place of the failed one: so of the records after that, only the release counts.
    """
    # A refusal concerns a request that was published.
    stage = TurnsStage(defaults, publish=any(_type_of(record) == "provider.answered" for record in records))
    until = [record for record in records if record.offset <= cause]
    stage.process(until)
    entry = stage.find(key)
    for record in records[len(until) :]:
        if entry is None or entry.parked is None:
            break
        if _releases(record):
            stage.process([record])
            entry = stage.find(key)
    return None if entry is None else entry.session


def _releases(record: Record) -> bool:
    return _type_of(record) == "session.released"


def _type_of(record: Record) -> str:
    return words_of(members_of(record.value).get("type", b"")) or ""


class _Came(Struct, frozen=True):
    """An input block; None represents a message without blocks."""

    path: str
    turn: Turn
    block: Block | None


class _Pair(Struct):
    """A row before it is made: the number of the block that came in, -1 for none, and where it went, "" for nowhere.

    ``inner`` is the path of a part of the block, where the row is about that part alone.
    """

    came: int
    sent: str = ""
    how: How = "same"
    code: str = ""
    inner: str = ""
    left_note: tuple[str, str] = ("", "")
    right_note: tuple[str, str] = ("", "")
    marks: list[Mark] = []


class Aligned:
    """Both sides of a request. Work on the whole history is done once; rows are made on demand.

    Attributes:
        exact: the computed body equals the published one; otherwise both sides are shown by position.
        marks: the fixes, each in one row, or in the ``head``: model, system prompt, tools, parameters.
    """

    def __init__(self, turns: Sequence[Turn], body: bytes, target: str, setting: Setting) -> None:
        self.exact = True
        self.marks: Sequence[Mark] = ()
        self._came = [came for turn in turns for came in _blocks(turn)]
        self._at = {came.path: number for number, came in enumerate(self._came)}
        self._first = {came.turn.place: number for number, came in reversed([*enumerate(self._came)])}
        self._body, self._whole, self._setting = Document(body), body, setting
        self.is_text = target in TARGETS and TARGETS[target].is_text
        self._texts: dict[str, str] = {}
        self._ids: Sequence[str | None] = ()
        self._pairs: list[_Pair] = []
        self._head_marks: list[Mark] = []

    @classmethod
    def of_request(
        cls, turns: Sequence[Turn], done: Normalized, setting: Setting, new: Collection[Fix] | None = None
    ) -> Aligned:
        """Return the two sides of a request; ``new`` are the fixes that no earlier one had, if known."""
        found = cls(turns, done.unjudged, done.target, setting)
        found._ids = done.ids
        found._pairs = [*found._paired(done.ledger)]
        if found.is_text and not found._body.items("messages"):
            found._take_texts([part for part in done.parts if part])
        fresh = {(fix.code, fix.path, fix.observed) for fix in new or ()}
        found._place([mark_of(fix, new=(fix.code, fix.path, fix.observed) in fresh) for fix in done.fixes])
        return found

    @classmethod
    def by_position(
        cls, turns: Sequence[Turn], body: bytes, target: str, setting: Setting, fixes: Iterable[Fix]
    ) -> Aligned:
        """Return both sides unaligned: the known history, and the body, with the published fixes."""
        found = cls(turns, body, target, setting)
        found.exact = False
        sent = found._sent_paths()
        for number in range(max(len(found._came), len(sent))):
            came = number if number < len(found._came) else -1
            found._pairs.append(_Pair(came, sent[number] if number < len(sent) else ""))
        found._place([mark_of(fix, new=True) for fix in fixes])
        return found

    def __len__(self) -> int:
        return len(self._pairs)

    # The alignment of blocks.

    def _paired(self, ledger: Sequence[LedgerEntry]) -> Iterator[_Pair]:
        """Return the rows in the order of the body.

        A block in another order has two rows, each with a reference to the other. A block that was left out is at its
        input place.
        """
        sent = [(entry, self._at.get(entry.path, -1)) for entry in ledger if entry.output]
        entries = {entry.path: entry for entry in ledger if entry.path in self._at}
        keep = _in_order([(came, entry.fate == "moved") for entry, came in sent if came >= 0])
        next_came, beside = 0, set[str]()
        for entry, came in sent:
            place = self._reached(entry.output)
            pair = _Pair(came, place, _HOW[entry.fate], entry.code)
            if "." not in entry.output:
                pair.sent, pair.left_note = "", ("in the system prompt", "")
            elif place in beside:
                pair.sent, pair.left_note = "", ("in what stands above", "")
            beside.add(place)
            if came in keep:
                yield from self._only_came(next_came, came, entries)
                next_came = came + 1
                yield pair
            elif came >= 0 or not entry.path:
                pair.came, pair.right_note = -1, ("came as" if entry.path else "", entry.path)
                if pair.sent:
                    yield pair
            else:
                pair.came, pair.inner = self._within(entry.path), entry.path
                yield pair
        yield from self._only_came(next_came, len(self._came), entries)

    def _reached(self, output: str) -> str:
        """The place of a block in the body as it is: where a message is one text, that is the message's."""
        return output.rpartition(".")[0] if self.is_text else self._body.find(output)[1]

    def _only_came(self, start: int, stop: int, entries: dict[str, LedgerEntry]) -> Iterator[_Pair]:
        for number in range(start, stop):
            entry = entries.get(self._came[number].path)
            if entry is None or not entry.output:
                yield _Pair(number, how="vanished")
            else:
                yield _Pair(number, how=_HOW[entry.fate], left_note=("went to", entry.output))

    def _within(self, path: str) -> int:
        """Return the number of the block that a path leads to or into, -1 if there is none."""
        while path and path not in self._at:
            path = path.rpartition(".")[0]
        return self._at.get(path, -1)

    def _take_texts(self, parts: Sequence[bytes]) -> None:
        """Give the rows of a text their parts, one for each message."""
        read = _unescaped if self._body.members else plain
        places = [pair.sent for pair in self._pairs if pair.sent]
        if len(places) == len(parts):
            self._texts = {place: read(part) for place, part in zip(places, parts, strict=True)}
        elif places:
            self._texts = dict.fromkeys(places, "") | {places[0]: plain(self._whole)}

    def _sent_paths(self) -> list[str]:
        """The places of the body's blocks, in order."""
        paths = [
            path
            for name in LISTS
            for at, item in enumerate(self._body.items(name))
            for path in _paths(f"{name}.{at}", item)
        ]
        if not paths:
            self._texts["text"] = plain(self._whole)
        return paths or ["text"]

    # The places of fixes.

    def _place(self, marks: Sequence[Mark]) -> None:
        self.marks = marks
        rows = {pair.came: pair for pair in reversed(self._pairs) if pair.came >= 0 and not pair.inner}
        added: dict[str, deque[_Pair]] = defaultdict(deque)
        for pair in self._pairs:
            if pair.how == "appeared":
                added[pair.code].append(pair)
        for mark in marks:
            of_code = added.get(mark.code)
            own = of_code.popleft() if of_code else rows.get(self._number(mark))
            (self._head_marks if own is None else own.marks).append(mark)

    def _number(self, mark: Mark) -> int:
        """Return the number of a fix's block, or of its message's first one; -1 if there is none."""
        entry = self._within(mark.path)
        if mark.code == "placeholder_dropped":
            # The path of a synthesised block is in the repaired history, so the call identifies it better.
            return entry if _answers(self._came[entry].block, mark.tool_id) else self._calls.get(mark.tool_id, -1)
        return entry if entry >= 0 else self._first.get(_message(mark.path), -1)

    @cached_property
    def _calls(self) -> dict[str, int]:
        """The number of the last call of each id."""
        return {came.block.id: at for at, came in enumerate(self._came) if isinstance(came.block, ToolUse)}

    # Output.

    def head(self) -> Row:
        """The head (everything besides the messages) of both sides."""
        known = {name: value for name in _HEAD if (value := getattr(self._setting, name))}
        sent = {name: value for name, value in self._body.members.items() if name not in LISTS}
        left = cell_of(msgspec.json.encode(known), path="", role="head")
        right = cell_of(msgspec.json.encode(sent), path="", role="head")
        return Row(left=structs.replace(left, fixes=self._head_marks), right=right if sent else None)

    def rows(self, start: int, stop: int) -> list[Row]:
        """Return a range of rows with their cells; a cell begins a message if the one above is of another."""
        found: list[Row] = []
        messages = ["", ""]
        for number in range(max(start, 0), min(stop, len(self._pairs))):
            pair = self._pairs[number]
            cells = [self._left(pair), self._right(pair)]
            for side, cell in enumerate(cells):
                if cell is not None and cell.message != messages[side]:
                    messages[side], cells[side] = cell.message, structs.replace(cell, begins=True)
            found.append(Row(left=cells[0], right=cells[1], how=pair.how, number=number))
        return found

    def number_of(self, path: str) -> int:
        """Return the number of the row with a place in the history, -1 if there is none."""
        came = self._within(path)
        return next((number for number, pair in enumerate(self._pairs) if pair.came == came >= 0), -1)

    def number_marked(self, code: str, path: str) -> int:
        """Return the number of the row with a fix of this code and path, -1 if there is none."""
        marked = ((number, mark) for number, pair in enumerate(self._pairs) for mark in pair.marks)
        return next((number for number, mark in marked if (mark.code, mark.path) == (code, path)), -1)

    def number_sent(self, path: str) -> int:
        """Return the number of the row with a place in the body, or of its message's first row; -1 if absent."""
        places = {pair.sent: number for number, pair in reversed([*enumerate(self._pairs)]) if pair.sent}
        messages = {_message(place): number for place, number in places.items()}
        message = _message(path)
        while path and path not in places:
            path = path.rpartition(".")[0]
        return places.get(path, messages.get(message, -1))

    def row_of_message(self, number: int) -> int:
        """Return the number of the first row of this message of the body, if rows are by position."""
        return bisect_left(
            self._pairs, number, key=lambda pair: int(pair.sent.partition(".")[2].partition(".")[0] or -1)
        )

    def _left(self, pair: _Pair) -> Cell | None:
        if pair.came < 0:
            return None
        came = self._came[pair.came]
        raw = b'""' if came.block is None else msgspec.json.encode(on_the_wire(came.block))
        if pair.inner:
            last = pair.inner.rpartition(".")[2]
            raw, _ = value_at(raw, f"content.{last}" if last.isdecimal() else last)
        turn = came.turn
        cell = cell_of(raw, path=pair.inner or came.path, role=turn.role, message=turn.place, message_id=turn.id or "")
        note, to = pair.left_note
        return structs.replace(cell, note=note, to=to, fixes=pair.marks)

    def _right(self, pair: _Pair) -> Cell | None:
        if not pair.sent:
            return None
        note, to = pair.right_note
        fixes = pair.marks if pair.came < 0 else ()
        place = _message(pair.sent)
        if pair.sent in self._texts:
            text = self._texts[pair.sent]
            return Cell(path="", role="", kind="text", text=text, message=place, note=note, to=to, fixes=fixes)
        message = members_of(self._body.find(place)[0])
        raw, reached = self._body.find(pair.sent)
        role = next((words for key in ("role", "type") if key in message and (words := words_of(message[key]))), "")
        at = place.rpartition(".")[2]
        named = self._ids[int(at)] if at.isdecimal() and int(at) < len(self._ids) else None
        cell = cell_of(raw, path=reached, role=role, message=place, message_id=named or "")
        return structs.replace(cell, note=note, to=to, fixes=fixes)


def _message(path: str) -> str:
    """The place of the message that a path leads into."""
    return ".".join(path.split(".")[:2])


def _blocks(turn: Turn) -> list[_Came]:
    blocks = [_Came(block_path(turn, at), turn, block) for at, block in enumerate(turn.blocks)]
    return blocks or [_Came(turn.place, turn, None)]


def _answers(block: Block | None, tool_id: str) -> bool:
    return isinstance(block, ToolResult) and block.tool_use_id == tool_id


def _paths(place: str, item: bytes) -> list[str]:
    """The places of the blocks of one message or item of a body."""
    message = Document(item)
    name = next((name for name in ("content", "parts") if name in message.members), "")
    blocks = [f"{place}.{name}.{number}" for number in range(len(message.items(name)))] or [
        f"{place}.{name}".rstrip(".")
    ]
    return blocks + [f"{place}.tool_calls.{number}" for number in range(len(message.items("tool_calls")))]


def _unescaped(part: bytes) -> str:
    """A part of a text in a program's envelope, where it is escaped as JSON is."""
    for raw in (part, b'"%b"' % part):
        if (text := words_of(raw)) is not None:
            return text
    return plain(part)


def _in_order(blocks: Sequence[tuple[int, bool]]) -> set[int]:
    """The blocks that went out in the order in which they came in; each with whether it was moved.

    They are as many as can be of those that were not, and of the others those that fit in between.
    """
    stay = _longest_rising([came for came, moved in blocks if not moved])
    least, bounds = sys.maxsize, list[int]()
    for came, _ in reversed(blocks):
        bounds.append(least)
        least = came if came in stay else least
    found, before = set[int](), -1
    for (came, _), bound in zip(blocks, reversed(bounds), strict=True):
        if before < came < bound:
            found.add(came)
            before = came
    return found


def _longest_rising(numbers: Sequence[int]) -> set[int]:
    """Return the longest increasing subsequence of the numbers."""
    ends: list[int] = []  # of the best row of each length so far
    before: dict[int, int] = {}
    for number in numbers:
        at = bisect_left(ends, number)
        before[number] = ends[at - 1] if at else -1
        ends[at : at + 1] = [number]
    found: set[int] = set()
    number = ends[-1] if ends else -1
    while number >= 0:
        found.add(number)
        number = before[number]
    return found
