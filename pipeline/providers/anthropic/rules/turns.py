"""Order, calls and results: the rules that look beyond one block, over runs of neighbours of one role."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, Self, TypeAlias

from msgspec import UNSET, field, structs

from reknit.pipeline.providers.anthropic.rules import catalogue as rules
from reknit.pipeline.providers.anthropic.rules.catalogue import UNKNOWN, Claude
from reknit.pipeline.providers.anthropic.rules.wire import KINDS, Message, RedactedThinking, Text, Thinking, ToolUse
from reknit.pipeline.rules._fold import Walk
from reknit.pipeline.rules._media import CLAUDE
from reknit.pipeline.rules.base import NONE_SEEN, Seen

# The role of the current run of messages; "" before the first.
Role: TypeAlias = Literal["", "user", "assistant", "system"]

_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]+").fullmatch
_THINKING_KINDS = ("thinking", "redacted_thinking")

# The result block of a server tool is named after the tool, but for these.
_RESULT_NAMES = {
    "tool_search_tool_regex": "tool_search_tool_result",
    "tool_search_tool_bm25": "tool_search_tool_result",
}
# Tools whose results were recorded. A new tool's result may have any name.
_KNOWN_TOOLS = _RESULT_NAMES.keys() | {
    "advisor", "bash_code_execution", "code_execution", "mcp", "text_editor_code_execution", "web_fetch", "web_search",
}  # fmt: skip


def _result_of(name: str) -> str:
    """Name the result block of a server tool."""
    return _RESULT_NAMES.get(name, f"{name}_tool_result")


class Turns(Walk, kw_only=True, eq=False):
    """The state of roles, calls and results. The API merges neighbours of one role into one run.

    Attributes:
        other_vendor: the model is named as another vendor's, whose signatures are not known.
        unsigned: the model takes reasoning back that is not signed.
        thinking: the parameter's ``type``, "" where it is absent.
        betas: the requested beta features, if a header or the body names them.
        tools: the request has tools.
        tool_names: the names of declared and added tools. None if servers bring more, which the request does not name.
        search_tool: one of them searches for tools.
        markers: the number of cached blocks.
        short: there was one for five minutes.
        documents: the number of PDFs.
        images: the number of images, and ``wide`` the places (Reknit's, the provider's) of those too wide among many.
        ids: all tool_use ids of earlier steps, and ``new_ids`` those of this one.
        tool_blocks: there was a call or a result.
        last: the last message that could be read, at ``last_at``.
        role: the role of the current run.
        calls: tool_use id to message index: the calls of this assistant run, or, in a user run, of the assistant run
            directly before it.
        answered: those of ``calls`` that the user run has answered.
        sealed: the user run has held a block other than a result, so no result may follow.
        servers: server tool calls without a result: id to message index and tool name.
        loop: the assistant message that opened the current tool loop, and its index.
        results: the last user run held a result.
        thought: the run may hold thinking.
        blocks, first_call, calls_here: the current message, its first call and its number of calls so far.
    """

    family: Claude = UNKNOWN
    other_vendor: bool = False
    unsigned: bool = False
    thinking: str = ""
    betas: frozenset[str] = frozenset()
    tools: bool = False
    tool_names: frozenset[str] | None = frozenset()
    search_tool: bool = False
    markers: int = 0
    short: bool = False
    documents: int = 0
    images: int = 0
    wide: tuple[tuple[str, str], ...] = ()
    ids: Seen = NONE_SEEN
    new_ids: set[str] = field(default_factory=set)
    tool_blocks: bool = False
    last: Message | None = None
    last_at: int = 0
    role: Role = ""
    calls: dict[str, int] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    sealed: bool = False
    servers: dict[str, tuple[int, str]] = field(default_factory=dict)
    loop: tuple[int, Message] | None = None
    results: bool = False
    thought: bool = True
    blocks: Sequence[Any] = ()
    first_call: int = 0
    calls_here: int = 0

    def fork(self) -> Self:
        # Whether a continued run holds thinking is unknown.
        return structs.replace(
            self,
            found=[],
            calls=dict(self.calls),
            servers=dict(self.servers),
            answered=set(self.answered),
            new_ids=set(),
            thought=True,
        )

    def mark(self, ttl: object, path: str) -> None:
        """Count a cache breakpoint in the block at ``path``; without a ttl it is one for five minutes."""
        self.markers += 1
        if ttl != "1h":
            self.short = True
        elif self.short:
            where = f"{path}.cache_control.ttl"
            self.refuse(rules.CACHE_ORDER, where, at=where)

    def path(self, at: int) -> str:
        return f"messages.{self.index}.content.{at}"

    def judge_role_of(self, kind: str, role: str) -> bool:
        """Return True if the message may hold a block of ``kind``; otherwise report it."""
        if self.role != role:
            self.refuse(rules.BLOCK_ROLE, f"messages.{self.index}", kind=kind, role=role)
        return self.role == role

    def refuse_after_calls(self) -> None:
        """Report, at a message's end, that other than calls followed its first call."""
        ids = ", ".join(block.id for block in self.blocks if block.__class__ is ToolUse)
        texts = any(block.__class__ is Text for block in self.blocks[self.first_call :])
        rule = rules.AFTER_CALL if texts else rules.AFTER_CALL_OTHER
        self.refuse(rule, f"messages.{self.index}", ids=ids)

    def enter_run(self, message: Message, index: int) -> None:
        """Take up a message of another role than the one before."""
        before, role = self.role, message.role
        self.role = role
        if role == "user":
            if before == "assistant" and (self.thought or self.servers):
                self._leave_assistant(paused=False)
            # Answers count for the assistant's run directly before them.
            if self.answered:
                self.answered = set()
            self.sealed = self.results = False
        elif role == "assistant":
            if self.calls:
                self._calls_unanswered()
            elif not before:
                self.refuse(rules.FIRST_USER, "messages.0", at="messages")
            # Results continue the open loop; any other user content begins a new one.
            if not self.results or self.loop is None:
                self.loop = index, message
        else:
            if before == "assistant":
                self._leave_assistant(paused=False)
            self._calls_unanswered()
            self._system(index, first=not before)

    def has_beta(self, feature: str) -> bool:
        """Return True if a beta feature of this name, of whatever date, is asked for."""
        return any(beta.startswith(f"{feature}-") for beta in self.betas)

    def judge_beta(self, features: tuple[str, ...], path: str, at: str, kind: str = "") -> None:
        """Judge what needs one of these features; of a parameter, or of a tool or block of this ``kind``."""
        if self.betas and not any(map(self.has_beta, features)):
            words = f"Input tag '{kind}' found using 'type' does not match any of the expected tags"
            self.refuse(rules.WITHOUT_BETA, path, at=at, words=words if kind else "Extra inputs are not permitted")

    def judge_reference(self, name: str | None, path: str) -> None:
        """Judge the name of a tool that a search has found."""
        if self.tool_names is not None and name is not None and name not in self.tool_names:
            self.refuse(rules.TOOL_REFERENCE, path, name=name)

    def judge_file_source(self, path: str, at: str, tags: str) -> None:
        """Judge an uploaded file, which needs a beta header: where any header is known, it is settled."""
        if not self.has_beta("files-api"):
            self.refuse(rules.FILE_WITHOUT_BETA if self.betas else rules.FILE_SOURCE, path, at=at, tags=tags)

    def _leave_assistant(self, *, paused: bool) -> None:
        """Judge an assistant run as a whole; at the end of the request it may be ``paused`` at a server tool."""
        last = self.last
        if last is not None and last.content and last.content[-1].__class__ is Thinking:
            self.refuse(rules.LAST_THINKING, f"messages.{self.last_at}")
        # Code that the provider runs may have made a client's call, and continues with its result.
        if self.servers and not self.calls and not paused:
            self._server_calls_unanswered()
        self.thought = False

    def _system(self, index: int, *, first: bool) -> None:
        path = f"messages.{index}.role"
        if not self.family.system_turns:
            self.refuse(rules.SYSTEM_ROLE, path)
        elif first:
            self.refuse(rules.SYSTEM_FIRST, path)

    def _calls_unanswered(self) -> None:
        if len(self.answered) == len(self.calls):
            self.calls, self.answered = {}, set()
            return
        left: dict[int, list[str]] = {}
        for call, index in self.calls.items():
            if call not in self.answered:
                left.setdefault(index, []).append(call)
        for index, ids in left.items():
            self.refuse(rules.UNANSWERED, f"messages.{index}", ids=", ".join(ids))
        self.calls, self.answered = {}, set()

    def _server_calls_unanswered(self) -> None:
        for call, (index, name) in self.servers.items():
            self.refuse(rules.SERVER_UNANSWERED, f"messages.{index}", name=name, id=call, result=_result_of(name))
        self.servers = {}

    def judge_call(self, call: str, index: int, at: int) -> None:
        # Most ids are identifiers (toolu_01A, call_7), which is cheaper to check than the pattern.
        if not (call.isidentifier() and call.isascii()) and _LEGAL_ID(call) is None:
            path = f"messages.{index}.content.{at}"
            self.refuse(rules.ID_ALPHABET, f"{path}.id", at=f"{path}.tool_use.id")
        if call in self.calls:
            self.refuse(rules.SAME_ID, f"messages.{index}.content.{at}")
        elif call in self.new_ids or (self.ids.layers and call in self.ids):
            self.refuse(rules.SAME_ID_LATER, f"messages.{index}.content.{at}")
        self.new_ids.add(call)
        self.calls.setdefault(call, index)

    def judge_result(self, call: str, index: int, at: int) -> None:
        self.results = True
        asked = self.calls.get(call)
        if asked is None:
            self._orphan(call, f"messages.{index}.content.{at}")
        elif call in self.answered:
            self.refuse(rules.SECOND_RESULT, f"messages.{index}.content.{at}", id=call)
        else:
            if self.sealed:
                path = f"messages.{index}.content.{at}"
                self.refuse(rules.LATE_RESULT, path, at=f"messages.{asked}", ids=call)
            self.answered.add(call)

    def _orphan(self, call: str, path: str) -> None:
        if _LEGAL_ID(call) is None:
            field = f"{path}.tool_use_id"
            self.refuse(rules.ID_ALPHABET, field, at=f"{path}.tool_result.tool_use_id")
        self.refuse(rules.ORPHAN_RESULT, path, id=call)

    def judge_server_result(self, call: str, kind: str, path: str) -> None:
        """Take a server tool's result; its call must still be waiting."""
        asked = self.servers.pop(call, None)
        if asked is None:
            caller = "mcp_tool_use" if kind == "mcp_tool_result" else "server_tool_use"
            self.refuse(rules.SERVER_ORPHAN, path, result=kind, id=call, call=caller)
            return
        index, name = asked
        if name in _KNOWN_TOOLS and kind != _result_of(name):
            at = f"messages.{index}"
            self.refuse(rules.SERVER_OTHER, path, at=at, name=name, id=call, result=_result_of(name))

    def judge_end(self) -> None:
        last = self.last
        if not self.index:
            self.refuse(rules.NO_MESSAGES, "messages")
        if self.role == "assistant":
            self._leave_assistant(paused=True)
        self._calls_unanswered()
        if last is not None and last.role == "assistant" and last.content is not UNSET:
            self._final_assistant(last)
        self._judge_loop()
        if self.tool_blocks and not self.tools:
            self.refuse(rules.NO_TOOLS, "tools")
        if self.markers > rules.MARKERS:
            self.refuse(rules.TOO_MANY_MARKERS, "", count=self.markers)
        if self.images > CLAUDE.many:
            for path, at in self.wide:
                self.refuse(rules.IMAGE_TOO_WIDE, path, at=at)
        self._judge_media()
        self.judge_size()

    def _judge_media(self) -> None:
        """Judge the number of images and documents, each of which has a page at least."""
        count = self.images + self.documents
        if count > CLAUDE.media:
            self.refuse(rules.TOO_MANY_MEDIA, "", documents=self.documents, images=self.images)
        elif count > CLAUDE.media_of_some and not self.has_beta("context-1m"):
            self.refuse(rules.MANY_MEDIA, "", documents=self.documents, images=self.images)

    def judge_size(self) -> None:
        if self.size > CLAUDE.body_bytes:
            self.refuse(rules.TOO_LARGE, "")

    def _final_assistant(self, last: Message) -> None:
        """Judge a request that ends with the assistant's words, for the model to continue."""
        path = f"messages.{self.last_at}"
        # A server tool's call without a result is a paused turn, which every model continues.
        if not self.servers:
            self.refuse_where_known(rules.PREFILL, path)
        content, text = last.content, ""
        if isinstance(content, str):
            text = content
        elif isinstance(content, list):
            text = content[-1].text if content and isinstance(content[-1], Text) else ""
            if self.thinking in ("", "disabled"):
                for at, block in enumerate(content):
                    if isinstance(block, Thinking | RedactedThinking):
                        self.refuse(rules.THINKING_OFF, f"{path}.content.{at}")
        if text[-1:].isspace():
            self.refuse(rules.TRAILING_SPACE, f"{path}.content")

    def _judge_loop(self) -> None:
        """With thinking enabled, the assistant turn that the model continues starts with thinking."""
        going_on = self.role == "assistant" or (self.role == "user" and self.results)
        if self.thinking == "enabled" and going_on and self.loop is not None:
            index, message = self.loop
            kind = _first_kind(message)
            if kind not in _THINKING_KINDS:
                path = f"messages.{index}.content.0"
                self.refuse(rules.THINKING_FIRST, path, at=f"{path}.type", kind=kind)


def _first_kind(message: Message) -> str:
    """Name the type of a message's first block; string content is text."""
    content = message.content
    if isinstance(content, list) and content:
        return KINDS.get(type(content[0]), "")
    return "text"
