"""Order, calls and results: the rules that look beyond one block, over runs of neighbours of one role."""

from __future__ import annotations

import re

from pipeline.rules.anthropic import catalogue as rules
from pipeline.rules.anthropic.state import Role, Run, State
from pipeline.rules.anthropic.wire import KINDS, Message, Thinking
from pipeline.rules.base import Seen, Severity, Violation

_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]+").fullmatch

# The result block of a server tool is named after the tool, but for these.
_RESULT_NAMES = {
    "tool_search_tool_regex": "tool_search_tool_result",
    "tool_search_tool_bm25": "tool_search_tool_result",
}


class Turns:
    """The run machine while a step works on it; ``settle`` returns what it leaves behind.

    Its containers are its own copies: the state that it started from stays as it was.
    """

    __slots__ = (
        "answered", "calls", "found", "known_ids", "loop", "new_ids", "results", "role", "sealed", "servers",
        "system_turns", "thought",
    )  # fmt: skip

    def __init__(self, state: State, found: list[Violation]) -> None:
        run = state.run
        self.found = found
        self.system_turns = state.head.family.system_turns
        self.role: Role = run.role
        self.calls = dict(run.calls)
        self.answered = set(run.answered)
        self.sealed = run.sealed
        self.servers = dict(run.servers)
        self.loop = run.loop
        self.results = run.results
        # Whether the run holds thinking; a step that goes on in it cannot tell, and looks.
        self.thought = True
        # None where there are none, which is quickest to ask.
        self.known_ids = state.ids if state.ids.layers else None
        self.new_ids: set[str] = set()

    def settle(self) -> tuple[Run, Seen]:
        """Return what the next step goes on from."""
        run = Run(
            role=self.role,
            calls=self.calls,
            answered=frozenset(self.answered),
            sealed=self.sealed,
            servers=self.servers,
            loop=self.loop,
            results=self.results,
        )
        return run, (self.known_ids or Seen()).plus(self.new_ids)

    def enter(self, message: Message, index: int, last: Message | None, last_at: int) -> None:
        """Take up a message of another role than the one before."""
        before, role = self.role, message.role
        self.role = role
        if role == "user":
            if before == "assistant" and (self.thought or self.servers):
                self._leave_assistant(last, last_at, paused=False)
            if self.answered:
                self.answered = set()
            self.sealed = self.results = False
        elif role == "assistant":
            if self.calls:
                self._calls_unanswered()
            elif not before:
                self.found.append(rules.FIRST_USER.broken("messages.0", at="messages"))
            if not self.results or self.loop is None:
                self.loop = index, message
        else:
            if before == "assistant":
                self._leave_assistant(last, last_at, paused=False)
            self._calls_unanswered()
            self._system(index, first=not before)

    def close(self, last: Message | None, last_at: int) -> None:
        """End the last run, at the end of the request."""
        if self.role == "assistant":
            self._leave_assistant(last, last_at, paused=True)
        self._calls_unanswered()

    def _leave_assistant(self, last: Message | None, last_at: int, *, paused: bool) -> None:
        """Judge an assistant run as a whole; at the end of the request it may be ``paused`` at a server tool."""
        if last is not None and last.content and last.content[-1].__class__ is Thinking:
            self.found.append(rules.LAST_THINKING.broken(f"messages.{last_at}"))
        if self.servers and not self.calls and not paused:
            self._server_calls_unanswered()
        self.thought = False

    def _system(self, index: int, *, first: bool) -> None:
        path = f"messages.{index}.role"
        if not self.system_turns:
            severity: Severity = "model" if self.system_turns is None else "hard"
            self.found.append(rules.SYSTEM_ROLE.broken(path, severity))
        elif first:
            self.found.append(rules.SYSTEM_FIRST.broken(path))

    def _calls_unanswered(self) -> None:
        """Report the calls that were left open, message by message."""
        if len(self.answered) == len(self.calls):
            self.calls, self.answered = {}, set()
            return
        left: dict[int, list[str]] = {}
        for call, index in self.calls.items():
            if call not in self.answered:
                left.setdefault(index, []).append(call)
        for index, ids in left.items():
            self.found.append(rules.UNANSWERED.broken(f"messages.{index}", ids=", ".join(ids)))
        self.calls, self.answered = {}, set()

    def _server_calls_unanswered(self) -> None:
        for call, (index, name) in self.servers.items():
            result = _RESULT_NAMES.get(name, f"{name}_tool_result")
            path = f"messages.{index}"
            self.found.append(rules.SERVER_UNANSWERED.broken(path, name=name, id=call, result=result))
        self.servers = {}

    def call(self, call: str, index: int, at: int) -> None:
        """Take a tool_use of the assistant's."""
        # Most ids are identifiers (toolu_01A, call_7), which costs less to tell than the pattern.
        if not (call.isidentifier() and call.isascii()) and _LEGAL_ID(call) is None:
            path = f"messages.{index}.content.{at}"
            self.found.append(rules.ID_ALPHABET.broken(f"{path}.id", at=f"{path}.tool_use.id"))
        if call in self.new_ids or (self.known_ids is not None and call in self.known_ids):
            self.found.append(rules.SAME_ID.broken(f"messages.{index}.content.{at}"))
        self.new_ids.add(call)
        self.calls.setdefault(call, index)

    def result(self, call: str, index: int, at: int) -> None:
        """Take a tool_result of the user's."""
        self.results = True
        asked = self.calls.get(call)
        if asked is None:
            self._orphan(call, f"messages.{index}.content.{at}")
        elif call in self.answered:
            self.found.append(rules.SECOND_RESULT.broken(f"messages.{index}.content.{at}", id=call))
        else:
            if self.sealed:
                late = rules.LATE_RESULT.broken(f"messages.{index}.content.{at}", at=f"messages.{asked}", ids=call)
                self.found.append(late)
            self.answered.add(call)

    def _orphan(self, call: str, path: str) -> None:
        if _LEGAL_ID(call) is None:
            field = f"{path}.tool_use_id"
            self.found.append(rules.ID_ALPHABET.broken(field, at=f"{path}.tool_result.tool_use_id"))
        self.found.append(rules.ORPHAN_RESULT.broken(path, id=call))

    def server_result(self, call: str, kind: str, path: str) -> None:
        """Take a server tool's result; its call must still be waiting."""
        if self.servers.pop(call, None) is None:
            caller = "mcp_tool_use" if kind == "mcp_tool_result" else "server_tool_use"
            self.found.append(rules.SERVER_ORPHAN.broken(path, result=kind, id=call, call=caller))


def first_kind(message: Message) -> str:
    """Name the type of a message's first block; string content is text."""
    content = message.content
    if isinstance(content, list) and content:
        return KINDS.get(type(content[0]), "")
    return "text"
