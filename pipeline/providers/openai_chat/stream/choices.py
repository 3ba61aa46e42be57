"""A growing choice of a chat: one delta after another to the events of its blocks.

A block lasts as long as the same member grows. Notes about the text, such as annotations, belong to the last text, or
to the next one if there is none yet; without any they are a separate block. No provider takes them back, so they are
noted with ``aside``.

Calls are the exception. Several calls grow in parallel, each identified by its index, its id, both, or neither:

- Id and name may arrive late or in pieces, and an item is named when it begins. So a call begins with the first piece
  of its input after its name and its id, or where it must: when its choice ends, or another block begins to grow. Calls
  begin in the order in which they arrived.
- A name that is repeated whole is the same name; any other one before the input is a continuation.
- Some servers give all calls of one message index 0, or none at all. Another id with a name is another call, and so is
  another name after the input of the previous one, a name after an input that is whole, and another named element of
  the same list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.history.call_ids import derived_id
from reknit.pipeline.providers.openai_chat.stream import wire
from reknit.pipeline.providers.openai_chat.stream.wire import Choice, Delta, Function, ToolCall
from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.events import Answer, BlockWriter
from reknit.pipeline.streams.fields import Fields

# Why an output can end before its end.
CUT: Final = frozenset({"length", "content_filter"})
# Not why the model stopped, but that its server did: the answer has no end.
FAILED: Final = "error"
# The mark of a text that is a refusal.
REFUSAL: Final = "refusal"
_TRUE: Final = Raw(b"true")
# Characters that open and close in JSON; a backslash includes the next one.
_MARKS: Final = re.compile(r'["\\{}\[\]]')
_OUTSIDE, _STRING, _ESCAPE = 0, 1, 2


class Call(Struct, array_like=True):
    """A call, and its identification.

    ``block`` is -1 while the call waits for its identification; its input is ``held`` until then. ``free``: its input
    is text, which is in an object of JSON. ``begun``: some of its input has arrived. ``old``: it is of the API of
    functions, which has no ids. ``depth`` and ``mode`` are the position in the held JSON: the number of open objects
    and lists, and whether it is outside of a string (0), in one (1), or after a backslash (2).
    """

    block: int
    index: int
    id: str
    free: bool = False
    name: str = ""
    held: list[str] = []
    begun: bool = False
    old: bool = False
    depth: int = 0
    mode: int = 0


class Growing(Answer, array_like=True):
    """A growing choice: an answer, and the calls that grow next to its words.

    ``thinking`` is the last block of reasoning. ``others`` are the blocks of unknown members, by name. ``plain`` says
    that a chunk without a role has arrived; ``reason`` is why it stopped, ``""`` while it grows. Of the ``calls`` the
    first ``started`` have begun; they are found by index and by id. ``text`` is the last block of text, and ``waiting``
    the notes about a text that has not begun, as JSON. ``late`` is why it had stopped before it continued.
    """

    thinking: int = -1
    calls: list[Call] = msgspec.field(default_factory=list)
    others: dict[str, int] = msgspec.field(default_factory=dict)
    plain: bool = False
    reason: str = ""
    started: int = 0
    by_index: dict[int, int] = msgspec.field(default_factory=dict)
    by_id: dict[str, int] = msgspec.field(default_factory=dict)
    text: int = -1
    waiting: list[tuple[str, bytes, bool]] = msgspec.field(default_factory=list)
    late: str = ""

    def has_begun(self) -> bool:
        return bool(self.reason or self.kind or self.calls or self.others or self.block >= 0)


class Blocks(Struct, array_like=True):
    """The blocks of one message, over all its choices; ``count`` is the next one's index."""

    count: int = 0

    def next(self) -> int:
        self.count += 1
        return self.count - 1


class ChoiceWriter(BlockWriter[Growing]):
    __slots__ = ()

    def take_choice(self, choice: Choice) -> None:
        """A choice's next piece, in the order in which a model writes: it thinks, it speaks, it calls."""
        delta = choice.delta
        if delta is not None:
            self._add_words("thinking", wire.reasoning(delta))
            self._take_details(delta)
            if isinstance(delta.content, str):
                self._add_words("text", delta.content)
            elif delta.content:
                self._take_parts(delta.content)
            self._add_words(REFUSAL, delta.refusal or "")
            if delta.audio:
                self._take_audio(delta.audio)
            for annotation in delta.annotations or ():
                self.note_text("annotations", annotation, appends=True)
            if delta.tool_calls:
                self.take_calls(delta.tool_calls)
            elif delta.function_call is not None:
                self.take_calls([ToolCall(index=0, function=delta.function_call)], old=True)
        for name, value in choice.others.items():
            self._note_own(name, value)

    def note_text(self, name: str, value: Raw, *, appends: bool = False) -> None:
        """Note a member about the text: of the last one, or of the next one."""
        growing = self.answer
        if growing.text < 0:
            growing.waiting.append((name, bytes(value), appends))
        else:
            self.note_member(growing.text, name, value.copy(), appends=appends, aside=True)

    def release_waiting(self) -> None:
        """Return held pieces: calls that have not begun, and notes about a text that never arrived."""
        self.begin_all_calls()
        waiting, self.answer.waiting = self.answer.waiting, []
        for name, value, _ in waiting:
            self._note_own(name, Raw(value))

    def end_choice(self, reason: str) -> None:
        """End every block of a choice, which has no held pieces any more.

        If the output was cut, the text of a custom tool's call is incomplete too; if the server failed, everything is.
        """
        growing = self.answer
        growing.reason = reason
        if reason != FAILED:
            self.end_words()
            for call in growing.calls:
                if not (call.free and reason in CUT):
                    if call.free:
                        self.add_delta(call.block, "input_json_delta", '"}')
                    self.end_block(call.block)
            for block in growing.others.values():
                self.end_block(block)
        growing.kind, growing.calls, growing.others = "", [], {}
        growing.started, growing.by_index, growing.by_id = 0, {}, {}

    def _add_words(self, kind: str, words: str) -> None:
        if not words:
            return
        growing, shown_as = self.answer, "thinking" if kind == "thinking" else "text"
        if growing.kind != kind:
            self.end_words()
            self.begin_all_calls()
            block = self.open_words(kind, shown_as)
            if kind == "thinking":
                growing.thinking = block
            else:
                self._begin_text(block)
        self.add_delta(growing.block, f"{shown_as}_delta", words)

    def _begin_text(self, block: int) -> None:
        growing = self.answer
        growing.text = block
        if growing.kind == REFUSAL:
            self.note_member(block, REFUSAL, _TRUE)
        waiting, growing.waiting = growing.waiting, []
        for name, value, appends in waiting:
            self.note_member(block, name, Raw(value), appends=appends, aside=True)

    def _take_details(self, delta: Delta) -> None:
        """Signatures, which belong to the last reasoning, and reasoning that only its issuer can read."""
        for detail in delta.reasoning_details or ():
            if detail.signature:
                self._sign(detail.signature)
            if detail.data:
                self.end_words()
                self.begin_all_calls()
                block = self.begin_block("redacted_thinking")
                self.note_member(block, "data", Raw(msgspec.json.encode(detail.data)))
                self.end_block(block)

    def _sign(self, signature: str) -> None:
        growing = self.answer
        if growing.thinking < 0:
            self.begin_all_calls()
            growing.thinking = self.begin_block("thinking")
            self.end_block(growing.thinking)
        self.add_delta(growing.thinking, "signature_delta", signature)

    def _take_parts(self, content: list[Raw]) -> None:
        for raw in content:
            part = wire.part(raw)
            if part is None:
                self._note_own("content", raw)
                continue
            self._add_words(part.kind, part.words)
            if part.signature:
                self._sign(part.signature)
            for name, value in part.beside.items():
                self.note_text(name, value)

    def _take_audio(self, audio: Fields) -> None:
        """A voice's transcript is text; the sound is a separate block."""
        words, others = wire.transcript(audio)
        self._add_words("transcript", words)
        if others:
            self._note_own("audio", Raw(msgspec.json.encode(others)))

    def _note_own(self, name: str, value: Raw) -> None:
        """Collect unknown members: one block for each, with everything under its name."""
        block = self.answer.others.get(name)
        if block is None:
            block = self.answer.others[name] = self.begin_own_block(name, {})
        self.note_member(block, name, value.copy(), appends=True)

    # Calls.

    def take_calls(self, calls: Sequence[ToolCall], *, old: bool = False) -> None:
        """Take more of calls, as one list; ``old`` says that it is the one call of the old API instead."""
        growing = self.answer
        if growing.calls and not growing.by_index:
            _index_calls(growing)
        known = len(growing.calls)
        for came in calls:
            function = _function(came)
            at = _find_call(growing, came, function, known)
            if at is None:
                self.end_words()
                at = _add_call(growing, came, old=old)
            call = growing.calls[at]
            _name_call(growing, at, came, function)
            words = function.arguments
            if words:
                self._grow_call(call, words if isinstance(words, str) else msgspec.json.encode(words).decode())
            if call.block < 0:
                self._begin_calls(must=False)

    def begin_all_calls(self) -> None:
        growing = self.answer
        if growing.calls and not growing.by_index:
            _index_calls(growing)
        if growing.started < len(growing.calls):
            self._begin_calls(must=True)

    def _grow_call(self, call: Call, words: str) -> None:
        call.begun = True
        inside = read.escaped(words) if call.free else words
        if call.block >= 0:
            self.add_delta(call.block, "input_json_delta", inside)
            return
        call.held.append(inside)
        if not call.id and not call.free:
            _follow_json(call, words)

    def _begin_calls(self, *, must: bool) -> None:
        """Begin the calls that are known by all they are known by; or all, if they ``must``."""
        growing = self.answer
        while growing.started < len(growing.calls):
            call = growing.calls[growing.started]
            if not (must or (call.begun and call.name and (call.id or call.old))):
                return
            call.block = self.begin_block("tool_use", tool_id=call.id or derived_id(call.name), name=call.name)
            growing.started += 1
            held = ('{"input":"' if call.free else "") + "".join(call.held)
            call.held = []
            if held:
                self.add_delta(call.block, "input_json_delta", held)


def _index_calls(growing: Growing) -> None:
    """Find the calls of a state that was saved before calls waited: all of them have begun."""
    growing.started = len(growing.calls)
    for at, call in enumerate(growing.calls):
        call.begun = True
        growing.by_index[call.index] = at
        if call.id:
            growing.by_id[call.id] = at


def _function(came: ToolCall) -> Function:
    """Return the called function and its input; a custom tool's text replaces arguments."""
    if came.custom is not None and not (came.function is not None and came.function.name):
        return Function(came.custom.name, came.custom.input)
    return came.function or Function()


def _find_call(growing: Growing, came: ToolCall, function: Function, known: int) -> int | None:
    """Return the index of the call that continues, or None if another one begins.

    Calls from ``known`` on arrived in the same list.
    """
    calls = growing.calls
    here = len(calls) - 1 if came.index is None else growing.by_index.get(came.index, -1)
    if not came.id:
        return here if here >= 0 and _goes_on(calls[here], function, is_new=here >= known) else None
    at = growing.by_id.get(came.id, -1)
    if at >= 0:
        if here >= 0 and calls[here].id == came.id and came.index is not None:
            return here
        # One id for several calls: their indexes, or their places in one list, distinguish them.
        is_other = function.name and (at >= known if came.index is None else here < 0)
        return None if is_other else at
    if here < 0:
        return None
    call = calls[here]
    if not call.id:
        return here if _goes_on(call, function, is_new=here >= known) else None
    if function.name:
        return None
    # Without an index, an id that nothing else comes with is the next call's, unless the last one has no name yet.
    return here if came.index is not None or function.arguments or not call.name else None


def _goes_on(call: Call, function: Function, *, is_new: bool) -> bool:
    """Return True if what is known by nothing but this call's place is more of it."""
    name = function.name
    if not name:
        return True
    if is_new:
        return False
    if not (call.begun and call.name):
        return True
    is_whole = call.block < 0 and not call.depth and call.mode == _OUTSIDE
    return name == call.name and not (is_whole and function.arguments)


def _add_call(growing: Growing, came: ToolCall, *, old: bool) -> int:
    at = len(growing.calls)
    index = at if came.index is None else came.index
    is_free = came.custom is not None and not (came.function is not None and came.function.name)
    growing.calls.append(Call(-1, index, "", is_free, old=old))
    growing.by_index[index] = at
    return at


def _name_call(growing: Growing, at: int, came: ToolCall, function: Function) -> None:
    """Take the call's id and name, or more of them."""
    call = growing.calls[at]
    if call.block >= 0:
        return
    if came.id and came.id != call.id and not (call.id and (call.begun or function.arguments)):
        if growing.by_id.get(call.id) == at:
            del growing.by_id[call.id]
        call.id += came.id
        growing.by_id[call.id] = at
    if function.name and function.name != call.name:
        call.name += function.name


def _follow_json(call: Call, words: str) -> None:
    depth, mode, past = call.depth, call.mode, 0
    if mode == _ESCAPE:
        mode, past = _STRING, 1
    for found in _MARKS.finditer(words):
        if found.start() < past:
            continue
        mark = found[0]
        if mode == _STRING:
            if mark == "\\":
                past = found.end() + 1
            elif mark == '"':
                mode = _OUTSIDE
        elif mark == '"':
            mode = _STRING
        else:
            depth += (mark in "{[") - (mark in "}]")
    call.depth, call.mode = depth, _ESCAPE if past > len(words) else mode
