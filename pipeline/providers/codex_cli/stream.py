"""The output of ``codex exec --json`` to common events.

Codex reports whole items, not their growth. Its turns are runs of several answers. The start of an answer is not
reported either, so the next item after all calls have results, or after a notice that Codex asks again, is taken for
the next answer's. The content of an answer before a cut stays, because it is part of the next request.

Items are numbered from 0 in each run, also in one that resumes a thread, so calls are named after the run as well. The
tokens at the end of a turn are the thread's so far, of which the run's own share is reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import asdict

from reknit.pipeline.providers.anthropic.stream.wire import text_block
from reknit.pipeline.streams import fields as read
from reknit.pipeline.streams.decoder import PayloadDecoder, mark_of, tool_result, whole_call
from reknit.pipeline.streams.events import (
    Aside,
    Event,
    MessageDelta,
    MessageStarted,
    Notice,
    Retried,
    RunEnded,
    RunResult,
    UserMessage,
    WholeBlock,
    WholeMessage,
    unrecognized,
)
from reknit.pipeline.streams.fields import Fields
from reknit.pipeline.streams.framing.repair import check_strings
from reknit.topics.items import SessionInit, TurnResult, Usage

# Items that are calls: the call, and its result, in words that all sources share.

_FAILED: Final = frozenset({"failed", "declined"})
# Of the MCP's own blocks, those that the canonical form has.
_TEXT, _IMAGE = "text", "image"


class Call(Struct, frozen=True):
    """The form of a call in items of one type: the members of its input, and the reader of its result.

    ``known_late``: while the call runs, its input is not known yet.
    """

    input: tuple[str, ...]
    content: Callable[[Fields], list[Raw]]
    known_late: bool = False

    def block(self, item: Fields, tool_id: str) -> WholeBlock:
        return whole_call(tool_id, _named(item), self._input(item))

    def result(self, item: Fields, tool_id: str) -> UserMessage:
        content = Raw(b"[%b]" % b",".join(map(bytes, self.content(item))))
        failed = read.text(item, "status") in _FAILED or read.members(item, "error") is not None
        result = tool_result(tool_id, content, failed=failed)
        whole = read.raw(item, "result")
        return UserMessage(results=(result,), tool_result=whole, extras=read.others(item, _SAID.union(self.input)))

    def _input(self, item: Fields) -> Raw:
        if self.input == ("arguments",):
            given = read.raw(item, "arguments")
            return Raw(b"{}") if given is UNSET else given
        return Raw(msgspec.json.encode({name: item[name] for name in self.input if name in item}))


def _named(item: Fields) -> str:
    kind = read.text(item, "type")
    if kind == "mcp_tool_call":
        return f"mcp__{read.text(item, 'server')}__{read.text(item, 'tool')}"
    return read.text(item, "tool") or kind


def _text(words: str) -> Raw:
    return text_block(Raw(msgspec.json.encode(words)))


def _output(item: Fields) -> list[Raw]:
    return [_text(read.text(item, "aggregated_output"))]


def _status(item: Fields) -> list[Raw]:
    """Return the status word, which is all that Codex reports of such calls."""
    return [_text(read.text(item, "status") or "completed")]


def _states(item: Fields) -> list[Raw]:
    states = read.raw(item, "agents_states")
    return _status(item) if states is UNSET or bytes(states) in read.NOTHING else [_text(bytes(states).decode())]


def _mcp(item: Fields) -> list[Raw]:
    error, result = read.members(item, "error"), read.members(item, "result") or {}
    if error is not None:
        return [_text(read.text(error, "message") or "failed")]
    # Where there is structured content, Codex sends the model that alone.
    structured = read.raw(result, "structured_content")
    if structured is not UNSET:
        return [_text(bytes(structured).decode())]
    return [_mcp_block(raw) for raw in read.elements(result, "content") or ()] or [_text("")]


def _mcp_block(raw: Raw) -> Raw:
    block = read.members({"block": raw}, "block") or {}
    kind, data = read.text(block, "type"), read.text(block, "data")
    if kind == _TEXT:
        return _text(read.text(block, "text"))
    if kind == _IMAGE and data:
        source = {"type": "base64", "media_type": read.text(block, "mimeType"), "data": data}
        return Raw(msgspec.json.encode({"type": "image", "source": source}))
    return _text(bytes(raw).decode())


CALLS: Final[dict[str, Call]] = {
    "command_execution": Call(("command",), _output),
    "file_change": Call(("changes",), _status),
    "mcp_tool_call": Call(("arguments",), _mcp),
    "collab_tool_call": Call(("prompt", "sender_thread_id"), _states),
    "web_search": Call(("query", "action"), _status, known_late=True),
    "todo_list": Call(("items",), _status),
}
# Members that a result's content or the call's name already has; other members of an item describe the call's outcome.
_SAID: Final = frozenset({"id", "type", "aggregated_output", "agents_states", "server", "tool", "result", "error"})

# The run: turns, answers and what they say.

# How Codex says that it asks again: "Reconnecting... 1/5 (…)", "Reconnecting... waiting for network (…)", up to 0.44
# "stream error: …; retrying 1/5 in 188ms…".
_AGAIN: Final = re.compile(r"\Areconnecting\.\.\. |; retrying \d+/\d+ in ", re.IGNORECASE)
_WORDS: Final = {"agent_message": "text", "reasoning": "thinking"}
# Lines about items that are remembered: one that comes again is a redelivery, for items are numbered.
_MOST_LINES: Final = 64


class Tokens(Struct, gc=False):
    """The reported token counts; tokens that are read from a cache, or written to one, are part of the first."""

    input_tokens: int = 0
    cached_input_tokens: int = 0
    cache_write_input_tokens: int = 0
    output_tokens: int = 0


class CodexDecoderState(Struct, array_like=True):
    """The state between lines; the first three are kept between runs.

    ``total`` is the thread's token count so far. ``asked``: a turn is open. ``answering``: an answer of the model is
    open. ``cut``: the next item belongs to another answer. ``open`` are calls without a result, ``held`` those whose
    input is not known yet; ``todo`` is the last to-do list, and ``lists`` the number of lists.
    """

    run: int = 0
    thread: str = ""
    total: dict[str, int] = {}
    asked: bool = False
    answering: bool = False
    cut: bool = False
    blocks: int = 0
    calls: int = 0
    open: list[str] = []
    held: dict[str, bytes] = {}
    todo: bytes = b""
    lists: int = 0
    lines: list[int] = []


class CodexCli(PayloadDecoder[CodexDecoderState]):
    """The source ``codex-cli``."""

    def __init__(self) -> None:
        super().__init__(CodexDecoderState)

    def payload(self, payload: bytes) -> list[Event]:
        check_strings(payload)
        fields = read.read_object(payload)
        kind = read.text(fields, "type")
        match kind:
            case "item.started" | "item.updated" | "item.completed":
                return self._item(kind, fields, payload)
            case "thread.started":
                left = self._leave_turn("next run")
                self._enter_run(read.text(fields, "thread_id"))
                extras = read.others(fields, {"type", "thread_id"})
                return [*left, Aside(SessionInit(session_id=self.state.thread, extras=extras))]
            case "turn.started":
                return [*self._leave_turn("next turn"), *self._answer()]
            case "turn.completed":
                return [*self.release_held(), MessageDelta("end_turn"), self._result(fields)]
            case "turn.failed":
                return [*self.release_held(), self._result(fields)]
            case "error":
                self.state.cut = self.state.answering
                message = read.text(fields, "message")
                if message:
                    return [Retried(message) if _AGAIN.search(message) else Notice(message=message)]
                return [unrecognized("malformed error", event=fields)]
            case _:
                return [unrecognized(f"unknown event type: {kind}" if kind else "no event type", event=fields)]

    def end_run(self) -> list[Event]:
        run, thread, total = self.state.run, self.state.thread, self.state.total
        left = super().end_run()
        self.state = CodexDecoderState(run + 1, thread, total)
        return left

    # Turns.

    def _leave_turn(self, reason: str) -> list[Event]:
        """End a turn without a reported end, because another one begins."""
        if not self.state.asked:
            return []
        left = [*self.release_held(), RunEnded(reason)]
        self.state.asked = self.state.answering = self.state.cut = False
        self.state.open = []
        return left

    def _enter_run(self, thread: str) -> None:
        state = self.state
        total = state.total if thread == state.thread else {}
        # If the end of the previous run was not reported, its items are present.
        self.state = CodexDecoderState(state.run + bool(state.lines), thread, total)

    def _answer(self) -> list[Event]:
        """The start of another answer of the model."""
        state = self.state
        # An answer whose calls have their results has been taken; one that was cut waits for what comes in its place.
        taken: list[Event] = [MessageDelta("tool_use")] if state.answering and not state.cut else []
        state.asked = state.answering = True
        state.cut, state.blocks, state.calls = False, 0, 0
        return [*taken, MessageStarted(None)]

    def _result(self, fields: Fields) -> Event:
        state = self.state
        failed = read.members(fields, "error")
        usage = self._own_usage(fields)
        extras = read.others(fields, {"type", "error", "usage"})
        if usage is not UNSET:
            extras = ({} if extras is UNSET else extras) | {"thread_usage": read.own(fields["usage"])}
        state.asked = state.answering = state.cut = False
        state.open = []
        return RunResult(
            TurnResult(
                subtype=read.text(fields, "type"),
                is_error=read.text(fields, "type") == "turn.failed",
                usage=usage,
                errors=UNSET if failed is None else Raw(msgspec.json.encode([read.text(failed, "message")])),
                extras=extras,
            )
        )

    def _own_usage(self, fields: Fields) -> Usage | UnsetType:
        """Return this run's tokens: the thread's without those of earlier runs.

        Up to 0.44 a run that resumes reports its own; they are then less than before, or equal.
        """
        counts = read.counts(fields, "usage", Tokens)
        if counts is None:
            return UNSET
        total = {name: max(0, count) for name, count in asdict(counts).items()}
        before = self.state.total
        if total == before or any(count < before.get(name, 0) for name, count in total.items()):
            before = {}
        self.state.total = total
        taken, cached, written, said = (count - before.get(name, 0) for name, count in total.items())
        return Usage(
            input_tokens=max(taken - cached - written, 0),
            output_tokens=said,
            cache_creation_input_tokens=written,
            cache_read_input_tokens=cached,
        )

    # Items.

    def _item(self, kind: str, fields: Fields, line: bytes) -> list[Event]:
        item = read.members(fields, "item")
        if item is None:
            return [unrecognized(f"malformed {kind}", event=fields)]
        item_type, item_id, done = read.text(item, "type"), read.text(item, "id"), kind == "item.completed"
        if kind != "item.updated" and item_id and self._is_known(item_id, line):
            return []
        if item_type == "error" and (message := read.text(item, "message")):
            return [Notice(message=message)]
        if item_type in _WORDS and done and bytes(item.get("text", b"")).startswith(b'"'):
            return self._show(_words(_WORDS[item_type], item))
        if item_type == "todo_list":
            return self._todo(item, item_id, done=done)
        if item_type in CALLS and kind != "item.updated":
            return self._call(item, item_type, self._named(item_id), done=done)
        known = item_type in {*_WORDS, *CALLS, "error", ""} and kind != "item.updated"
        return [unrecognized(f"malformed {kind}" if known else f"unknown {kind}: {item_type}", event=fields)]

    def _is_known(self, item_id: str, line: bytes) -> bool:
        mark, lines = mark_of(item_id, line), self.state.lines
        if mark in lines:
            return True
        self.state.lines = [*lines[1 - _MOST_LINES :], mark]
        return False

    def _named(self, item_id: str) -> str:
        return f"run-{self.state.run}-{item_id or f'call-{self.state.calls}'}"

    def _show(self, block: WholeBlock) -> list[Event]:
        """A block of the running answer, or of the next one."""
        state = self.state
        answered = state.calls and not (state.open or state.held)
        begun = self._answer() if state.cut or answered or not state.answering else []
        placed = msgspec.structs.replace(block, index=state.blocks)
        state.blocks += 1
        state.calls += block.kind == "tool_use"
        return [*begun, WholeMessage(message_id=None, blocks=(placed,))]

    def _call(self, item: Fields, item_type: str, tool_id: str, *, done: bool) -> list[Event]:
        call, state = CALLS[item_type], self.state
        if not done and call.known_late:
            state.held[tool_id] = msgspec.json.encode(item)
            return []
        began = tool_id in state.open
        state.held.pop(tool_id, None)
        events = [] if began else self._show(call.block(item, tool_id))
        if not done:
            state.open.append(tool_id)
            return events
        if began:
            state.open.remove(tool_id)
        return [*events, call.result(item, tool_id)]

    def _todo(self, item: Fields, item_id: str, *, done: bool) -> list[Event]:
        """Each list that the model writes is a call of its own; at the turn's end Codex only repeats the last."""
        todo = bytes(item.get("items", b""))
        if done and todo == self.state.todo:
            return []
        self.state.todo = todo
        self.state.lists += 1
        return self._call(item, "todo_list", f"{self._named(item_id)}-{self.state.lists}", done=True)

    def release_held(self) -> list[Event]:
        """Return calls without further lines, with their known members."""
        held, self.state.held = self.state.held, {}
        found = [(tool_id, read.read_object(item)) for tool_id, item in held.items()]
        return [event for key, item in found for event in self._show(CALLS[read.text(item, "type")].block(item, key))]


def _words(kind: str, item: Fields) -> WholeBlock:
    raw = Raw(msgspec.json.encode({"type": kind, kind: item["text"]}))
    return WholeBlock(
        kind=kind, text=read.text(item, "text"), raw=raw, extras=read.others(item, {"id", "type", "text"})
    )
