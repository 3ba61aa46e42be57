"""One pass over decoded messages, a step of the fold: order here, single blocks in ``blocks``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from msgspec.structs import replace

from pipeline.rules.base import Rule, Severity, Violation
from pipeline.rules.bedrock_converse import catalogue as rules
from pipeline.rules.bedrock_converse.blocks import LEGAL_NAME, is_one, judge_block, judge_call_id
from pipeline.rules.bedrock_converse.catalogue import member
from pipeline.rules.bedrock_converse.state import State
from pipeline.rules.bedrock_converse.wire import Block, Message, ToolResult, ToolUse

_ROLES: Final = frozenset({"user", "assistant"})


class Walk:
    """The fold's state while a step works on it; ``state`` returns what it leaves behind."""

    def __init__(self, state: State, index: int) -> None:
        self.found: list[Violation] = []
        self.before = state
        self.family = state.family
        self.index = index
        self.role = state.role
        self.run_at = state.run_at
        self.calls = state.calls
        self.results = state.results
        self.ids = state.ids
        self.documents = state.documents
        self.tool_blocks = state.tool_blocks

    def state(self) -> State:
        """Return what the next step goes on from."""
        return replace(
            self.before,
            role=self.role,
            run_at=self.run_at,
            calls=self.calls,
            results=self.results,
            ids=self.ids,
            documents=self.documents,
            tool_blocks=self.tool_blocks,
        )

    def messages(self, messages: Iterable[Message | None]) -> None:
        """Judge messages; None stands for one that could not be read and was reported already."""
        for message in messages:
            if message is not None:
                self._message(message)
            self.index += 1

    def tell(self, rule: Rule, path: str, takes: bool | None, **values: object) -> None:  # noqa: FBT001 - a fact of a family
        """Report what the family is known to refuse as hard, and what is not known of it as the model's."""
        if takes is not True:
            severity: Severity = "model" if takes is None else "hard"
            self.found.append(rule.broken(path, severity, **values))

    def _message(self, message: Message) -> None:
        role = message.role
        if role not in _ROLES:
            path = f"messages.{self.index}.role"
            rule = rules.SYSTEM_ROLE if role == "system" else rules.ROLE
            self.found.append(rule.broken(path, at=member(path), value=role))
        if role != self.role:
            self._enter(role)
        else:
            self.tell(rules.ALTERNATE, f"messages.{self.index}", self.family.neighbours)
        if not message.content:
            path = f"messages.{self.index}"
            self.found.append(rules.EMPTY_MESSAGE.broken(f"{path}.content", at=path))
        calls: list[str] = []
        results: list[str] = []
        documents = False
        at = 0
        for block in message.content:
            text = block.text
            # Most blocks are text that breaks nothing; the rest is looked at.
            if not text or text.isspace() or not is_one(block):
                self._block(block, at, calls, results)
                documents = documents or block.document is not None
            at += 1  # noqa: SIM113 - enumerate would make a tuple a block
        if calls:
            self._calls(calls)
        if results:
            self._results(results, message)
        if documents:
            self._documents(message)

    def _enter(self, role: str) -> None:
        """Begin a run of ``role``; the one before is complete."""
        if not self.role and role == "assistant":
            self.tell(rules.FIRST_USER, "messages.0", self.family.assistant_first)
        if role == "assistant":
            self.judge_results()
            if self.calls:
                self.ids = self.ids.plus(self.calls)
            self.calls = self.results = ()
        self.role, self.run_at = role, self.index

    def judge_results(self) -> None:
        """Compare the calls of an assistant run with the results of the user run after it."""
        if self.role == "assistant" or not (self.calls or self.results):
            return
        if self.results == self.calls and len(set(self.calls)) == len(self.calls):
            return
        path = f"messages.{self.run_at}.content"
        answered = set(self.results)
        left = [call for call in dict.fromkeys(self.calls) if call not in answered]
        if left:
            self.found.append(rules.UNANSWERED.broken(path, ids=", ".join(left)))
        if len(self.results) > len(self.calls):
            self.found.append(rules.TOO_MANY_RESULTS.broken(path))
        if repeated := _repeated(self.results):
            self.found.append(rules.SAME_RESULT.broken(path, ids=repeated))

    def _block(self, block: Block, at: int, calls: list[str], results: list[str]) -> None:
        path = f"messages.{self.index}.content.{at}"
        if block.toolUse is not None:
            self._call(block.toolUse, path, calls)
        elif block.toolResult is not None:
            self._result(block.toolResult, path, results)
        judge_block(self, block, path, at)

    def _call(self, call: ToolUse, path: str, calls: list[str]) -> None:
        self.tool_blocks = True
        if LEGAL_NAME(call.toolUseId) is None:
            self.found.append(judge_call_id(call.toolUseId, f"{path}.toolUse.toolUseId"))
        if call.type == "server_tool_use":
            return  # the service runs it, and answers it in the same turn
        if self.role != "assistant":
            self._misplaced("tool_use", "assistant")
            return
        calls.append(call.toolUseId)
        if call.toolUseId in self.ids and self.family.anthropic is not False:
            severity: Severity = "hard" if self.family.anthropic else "model"
            self.found.append(rules.REUSED_ID.broken(path, severity))

    def _result(self, result: ToolResult, path: str, results: list[str]) -> None:
        self.tool_blocks = True
        if LEGAL_NAME(result.toolUseId) is None:
            self.found.append(judge_call_id(result.toolUseId, f"{path}.toolResult.toolUseId"))
        if self.role == "user":
            results.append(result.toolUseId)
        elif result.type is None:
            self._misplaced("tool_result", "user")

    def _misplaced(self, kind: str, role: str) -> None:
        if self.family.anthropic is not False:
            severity: Severity = "hard" if self.family.anthropic else "model"
            self.found.append(rules.BLOCK_ROLE.broken(f"messages.{self.index}", severity, kind=kind, role=role))

    def _calls(self, calls: list[str]) -> None:
        self.calls += tuple(calls)
        if repeated := _repeated(self.calls):
            self.found.append(rules.SAME_CALL.broken(f"messages.{self.index}.content", ids=repeated))

    def _results(self, results: list[str], message: Message) -> None:
        self.results += tuple(results)
        if any(block.toolResult is None and block.cachePoint is None for block in message.content):
            self.tell(rules.MIXED_RESULTS, f"messages.{self.index}.content", self.family.mixed_results)

    def _documents(self, message: Message) -> None:
        names = [(at, block.document.name) for at, block in enumerate(message.content) if block.document is not None]
        path = f"messages.{self.index}.content"
        if all(block.text is None for block in message.content):
            self.found.append(rules.LONE_DOCUMENT.broken(path))
        for at, name in names:
            if name in self.documents:
                self.found.append(rules.SAME_DOCUMENT.broken(f"{path}.{at}.document.name"))
            self.documents = self.documents.plus([name])


def judge_end(state: State, count: int) -> list[Violation]:
    """Judge the end of ``count`` messages; the state stays as it is."""
    walk = Walk(state, count)
    walk.judge_results()
    if not count and not state.prompt:
        walk.found.append(rules.NO_MESSAGES.broken("messages"))
    if state.tool_blocks and not state.tools:
        walk.found.append(rules.NO_TOOLS.broken("toolConfig"))
    if state.role == "assistant":
        path = f"messages.{count - 1}"
        walk.tell(rules.PREFILL, path, state.family.prefill)
        if state.tools and state.family.prefill is not False:
            walk.tell(rules.PREFILL_TOOLS, path, state.family.prefill_with_tools)
        if state.calls:
            ids = ", ".join(dict.fromkeys(state.calls))
            walk.found.append(rules.OPEN_END.broken(f"{path}.content", at=f"messages.{count}.content", ids=ids))
    return walk.found


def _repeated(ids: Collection[str]) -> str:
    if len(set(ids)) == len(ids):
        return ""
    return ", ".join(each for each, count in Counter(ids).items() if count > 1)
