"""The plain beginning of a request's messages, judged in one pass.

Most requests break nothing: users and assistants take turns, and each call is answered at once, in order, by texts. So
much is told here by a few comparisons a block. What comes behind it goes to the walk, which would have said the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pipeline.rules.bedrock_converse.walk import Turns
from pipeline.rules.bedrock_converse.wire import Block, InResult, Message, ToolResult, ToolUse

_LONGEST: Final = 64


def pass_plain(walk: Turns, messages: Sequence[Message | None]) -> None:
    """Take a walk that has not begun past as many pairs of a user's and an assistant's message as break nothing."""
    known: set[str] = set()
    calls: list[str] = []
    count, tool_blocks = 0, False
    for user, assistant in zip(messages[::2], messages[1::2], strict=False):
        if user is None or assistant is None or user.role != "user" or assistant.role != "assistant":
            break
        # What was not decoded but read tolerantly may be no list.
        if type(user.content) is not list or type(assistant.content) is not list or not _answers(user.content, calls):
            break
        asked = _asks(assistant.content)
        known.update(calls)
        if asked is None or len(set(asked)) < len(asked) or not known.isdisjoint(asked):
            known.difference_update(calls)
            break
        tool_blocks = tool_blocks or bool(asked)
        calls = asked
        count += 2
    if count:
        walk.index, walk.run_at, walk.role = count, count - 1, "assistant"
        walk.calls, walk.ids, walk.tool_blocks = tuple(calls), walk.ids.plus(known), tool_blocks


def _answers(blocks: Sequence[Block], calls: Sequence[str]) -> bool:
    """Whether a user's message is the results of these calls in their order, or, without calls, plain text."""
    if not calls:
        return bool(blocks) and all(_says(block) for block in blocks)
    if len(blocks) != len(calls):
        return False
    for block, call in zip(blocks, calls, strict=True):
        result = block.toolResult
        if type(result) is not ToolResult or result.toolUseId != call or block != Block(toolResult=result):
            return False
        if result.type is not None or type(result.content) is not list or not result.content:
            return False
        for part in result.content:
            # Equal to one with this text alone: the quickest way to see that it is alone.
            if type(part) is not InResult or not (text := part.text) or text.isspace() or part != InResult(text):
                return False
    return True


def _asks(blocks: Sequence[Block]) -> list[str] | None:
    """The calls of an assistant's message that is plain text and calls; None if it is anything else."""
    calls: list[str] = []
    for block in blocks:
        call = block.toolUse
        if call is None:
            if not _says(block):
                return None
        elif type(call) is ToolUse and call.type is None and block == Block(toolUse=call):
            if not (_is_plain_name(call.toolUseId) and _is_plain_name(call.name)):
                return None
            calls.append(call.toolUseId)
        else:
            return None
    return calls if blocks else None


def _says(block: Block) -> bool:
    text = block.text
    return type(text) is str and bool(text) and not text.isspace() and block == Block(text)


def _is_plain_name(name: object) -> bool:
    """Whether an id or a name is an identifier, as most are (tooluse_7, read_file); the service takes a few more."""
    return type(name) is str and len(name) <= _LONGEST and name.isascii() and name.isidentifier()
