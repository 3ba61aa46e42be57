"""The plain beginning of a request's messages, judged in one pass.

Most requests break nothing: users and assistants take turns, and each call is answered at once, by nothing but text. So
much is told here by a few comparisons a block. What comes behind it goes to the walk, which would have said the same.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from msgspec.structs import replace

from pipeline.rules.anthropic.blocks import NAME_LENGTH
from pipeline.rules.anthropic.state import Run, State
from pipeline.rules.anthropic.wire import Message, Text, ToolResult, ToolUse
from pipeline.rules.base import Seen


def pass_plain(state: State, messages: Sequence[Message]) -> State:
    """The state behind as many pairs of a user's and an assistant's message as break nothing, from the first on."""
    ids: set[str] = set()
    calls: dict[str, int] = {}
    loop: tuple[int, Message] | None = None
    index, results, last = 0, False, None
    for user, assistant in zip(messages[::2], messages[1::2], strict=False):
        if user.role != "user" or assistant.role != "assistant" or not _answers(user.content, calls):
            break
        asked = _asks(assistant.content, ids, index + 1)
        if asked is None:
            break
        results = bool(calls)
        if loop is None or not results:
            loop = index + 1, assistant
        calls, last = asked, assistant
        ids.update(calls)
        index += 2
    if last is None:
        return state
    run = Run("assistant", calls, sealed=True, loop=loop, results=results)
    return replace(
        state, index=index, ids=Seen().plus(ids), run=run, last=last, last_at=index - 1, tool_blocks=bool(ids)
    )


def _answers(content: object, calls: Mapping[str, int]) -> bool:
    """Whether a user's message is plain and answers all ``calls``."""
    if type(content) is not list or not content:
        return _is_plain_text(content) and not calls
    answered: set[str] = set()
    said = False
    for block in content:
        kind = type(block)
        if kind is ToolResult:
            call = block.tool_use_id
            if said or call not in calls or call in answered or not _is_text(block.content):
                return False
            answered.add(call)
        elif kind is Text and block.text and not block.text.isspace():
            said = True
        else:
            return False
        if block.cache_control is not None:
            return False
    return len(answered) == len(calls)


def _asks(content: object, ids: Container[str], index: int) -> dict[str, int] | None:
    """The calls of a plain assistant's message, which have none of the ``ids``; None if it is not plain."""
    if type(content) is not list or not content:
        return {} if _is_plain_text(content) else None
    calls: dict[str, int] = {}
    for block in content:
        kind = type(block)
        if kind is Text:
            if calls or not block.text or block.text.isspace():
                return None
        elif kind is ToolUse:
            call, name = block.id, block.name
            # Most ids are identifiers (toolu_01A, call_7), which costs less to tell than the pattern.
            if call in ids or call in calls or not (call.isascii() and call.isidentifier()):
                return None
            if not name or len(name) > NAME_LENGTH:
                return None
            calls[call] = index
        else:
            return None
        if block.cache_control is not None:
            return None
    return calls


def _is_plain_text(content: object) -> bool:
    return type(content) is str and bool(content) and not content.isspace()


def _is_text(content: object) -> bool:
    """Whether a result is a string, or plain texts."""
    if type(content) is not list:
        return type(content) is str
    for part in content:
        if type(part) is not Text or not part.text or part.text.isspace() or part.cache_control is not None:
            return False
    return True
