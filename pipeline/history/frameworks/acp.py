"""Logs of the Agent Client Protocol: the updates that a client shows to its user.

A log has no system prompt, no signatures, no model, and no results in the form in which the model received them. Chunks
of one kind are joined until another kind of update follows. A tool without a name has the title that the client shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reknit.pipeline.history.frameworks import parts
from reknit.pipeline.history.frameworks.base import NULL, Framework, Item, Members, Reading, is_object, is_string, word
from reknit.pipeline.history.readers.fields import Fields, as_list, as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.tolerant import Inner, Placed, inner_only, kind_named
from reknit.pipeline.model import Role, Text, ToolUse

_CHUNKS: Final[dict[str, Role]] = {
    "user_message_chunk": "user",
    "agent_message_chunk": "assistant",
    "agent_thought_chunk": "assistant",
}
_ENDS: Final = frozenset({"completed", "failed"})


def _decides(members: Members) -> bool:
    if word(members, "jsonrpc") == "2.0" and word(members, "method").startswith("session/"):
        return True
    if not (is_string(members, "sessionId") and is_object(members, "update")):
        return False
    return "sessionUpdate" in as_object(members["update"], "")


def _fits(members: Members) -> bool:
    return "jsonrpc" in members or _decides(members)


def _read(reading: Reading, items: Sequence[Item]) -> None:
    log = _Log(reading)
    for item in items:
        log.read(item)
    log.end()


def _params(members: Members) -> Members:
    return as_object(members["params"], "params") if is_object(members, "params") else {}


class _Log:
    """Collects the updates of one session."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._session = ""
        self._kind = ""
        self._placed: list[Placed] = []
        self._item: Item | None = None
        self._role: Role = "user"
        self._results: set[str] = set()
        self._calls: dict[str, Members] = {}

    def read(self, item: Item) -> None:
        fields = item.fields
        members = fields.members()
        method = word(members, "method")
        params = members if "update" in members else _params(members)
        session = word(params, "sessionId")
        self._session = self._session or session
        if session and session != self._session:
            # Another conversation of the same log.
            self._reading.leave_out(fields, "session")
            return
        if method == "session/prompt" and "prompt" in params:
            self._begin("prompt", "user", item)
            path = fields.at("params.prompt")
            for at, each in enumerate(as_list(params["prompt"], path)):
                if starts_with(each, b"{"):
                    self._placed += _part(Fields(each, f"{path}.{at}", fields.notes))
        elif is_object(params, "update") and (method in ("", "session/update")):
            self._update(as_object(params["update"], ""), item)
        else:
            self._reading.skipped[method or "response"] += 1
            return
        fields.clear()

    def _begin(self, kind: str, role: Role, item: Item) -> None:
        self.end()
        self._kind, self._role, self._item = kind, role, item

    def end(self) -> None:
        """Add the turn of the updates that were joined."""
        if self._item is not None:
            self._reading.add(self._role, self._placed, self._item)
        self._placed, self._item, self._kind = [], None, ""

    def _update(self, update: Members, item: Item) -> None:
        kind = word(update, "sessionUpdate")
        if kind in _CHUNKS:
            self._chunk(kind, update, item)
        elif kind == "tool_call":
            self._tool_call(update, item)
        elif kind == "tool_call_update":
            called = word(update, "toolCallId")
            self._calls[called] = {**self._calls.get(called, {}), **update}
            self._end_of_call(called, item)
        else:
            self._reading.leave_out(item.fields, kind)

    def _chunk(self, kind: str, update: Members, item: Item) -> None:
        named = f"{kind} {word(update, 'messageId')}"
        if self._kind != named:
            self._begin(named, _CHUNKS[kind], item)
        path = item.fields.at("update.content")
        content = update.get("content", NULL)
        if not starts_with(content, b"{"):
            return
        placed = _part(Fields(content, path, item.fields.notes))
        for block, where in placed:
            if kind == "agent_thought_chunk" and isinstance(block, Text):
                before = self._placed.pop()[0] if self._placed else parts.thinking("", "", None)
                text = getattr(before, "thinking", "") + block.text
                self._placed.append((parts.thinking(text, "", None), where))
            elif isinstance(block, Text) and self._placed and isinstance((last := self._placed[-1][0]), Text):
                self._placed[-1] = Text(text=last.text + block.text), self._placed[-1][1]
            else:
                self._placed.append((block, where))

    def _tool_call(self, update: Members, item: Item) -> None:
        called = word(update, "toolCallId")
        known = called in self._calls
        self._calls[called] = {**self._calls.get(called, {}), **update}
        if not known:
            self._begin("tool_call", "assistant", item)
            name = word(update, "name") or word(update, "title")
            block: ToolUse = parts.call(
                self._reading, called, name, update.get("rawInput"), item.fields.at("update.rawInput")
            )
            self._placed.append((block, item.fields.at("update")))
        self._end_of_call(called, item)

    def _end_of_call(self, called: str, item: Item) -> None:
        """Add the result of a call that has ended."""
        state = self._calls[called]
        status = word(state, "status")
        if status not in _ENDS or called in self._results:
            return
        self._results.add(called)
        self._begin("result", "user", item)
        path, notes = item.fields.at("update.content"), item.fields.notes
        blocks: list[Inner] = []
        content = state.get("content", NULL)
        for at, each in enumerate(as_list(content, path) if starts_with(content, b"[") else []):
            one = Fields(each, f"{path}.{at}", notes)
            if kind_named(one) != "content":
                self._reading.leave_out(one, kind_named(one))
                continue
            inner = one.take_object("content")
            if inner is not None:
                blocks += inner_only(_part(inner), notes)
        is_error = status == "failed"
        if blocks:
            block = parts.result(called, blocks, is_error=is_error)
        else:
            block = parts.result(called, parts.value_text(state.get("rawOutput")), is_error=is_error, is_value=True)
        self._placed.append((block, item.fields.at("update")))
        self.end()


def _part(fields: Fields) -> list[Placed]:
    """Return a block for a content block of the protocol; a link becomes its address."""
    if kind_named(fields) == "resource_link":
        text = fields.take_text("uri")
        fields.clear()
        return [(Text(text=text), fields.path)]
    return parts.mcp_part(fields)


FRAMEWORK: Final = Framework(
    name="acp",
    title="Agent Client Protocol",
    forms="a log of session updates (`.jsonl`)",
    tried="types of @agentclientprotocol/sdk 2.4.0",
    decides=_decides,
    fits=_fits,
    read=_read,
    lines=True,
)
