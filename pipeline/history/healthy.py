"""The healthy beginning of a history, found in one pass.

Most histories have nothing to mend. What the machine would take turn by turn and hand out unchanged is found here
by a few comparisons a block; where the least thing is unusual, the stretch ends and the machine takes over. Both give
the same, which a property checks.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct

from pipeline.history.ids import is_legal
from pipeline.history.placeholders import is_placeholder, may_be_placeholder
from pipeline.model import Policy, Text, ToolResult, ToolUse, Turn

# A user turn, an answer and another user turn: less is no work for the machine either.
_SHORTEST = 3

_OPEN_BRACE = ord("{")


class Stretch(Struct, frozen=True):
    """The settled turns at the beginning of a history.

    ``turns`` counts them, ``number`` their exchanges as the machine does; ``ids`` are their calls' ids, all answered,
    and ``names`` the tools that are called.
    """

    turns: int
    number: int
    ids: list[str]
    names: set[str]


def healthy_stretch(turns: Sequence[Turn], policy: Policy) -> Stretch | None:
    """The longest beginning that is plain and settled, or None.

    Plain is text, calls and results that are text, without breakpoints and issuers. The stretch ends before an
    assistant turn that is healthy too, so that the machine goes on from there.
    """
    if policy.strip_tools or len(turns) < _SHORTEST:
        return None
    answered: dict[str, str] = {}
    pending: dict[str, str] = {}
    stays = policy.missing_result == "synthesise"
    number = 1
    end = ends_number = ends_ids = 0
    for at, turn in enumerate(turns):
        if at % 2:
            calls = _calls(turn)
            if calls is None or not answered.keys().isdisjoint(calls):
                break
            # What is before a turn that might go altogether is not settled yet.
            if stays or isinstance(turn.blocks[0], Text):
                end, ends_number, ends_ids = at, number, len(answered)
            pending = calls
            number += 1
        else:
            said = _user_says(turn, pending)
            if said is None:
                break
            answered |= pending
            number += said and at > 0
    if not end:
        return None
    return Stretch(end, ends_number, list(answered)[:ends_ids], set(answered.values()))


def _calls(turn: Turn) -> dict[str, str] | None:
    """The names of a plain, healthy assistant turn's calls, by id; None if it is not one."""
    if turn.role != "assistant" or not turn.blocks:
        return None
    calls: dict[str, str] = {}
    for block in turn.blocks:
        if isinstance(block, Text):
            # Text behind a call is moved.
            if calls or not _is_plain(block):
                return None
        elif isinstance(block, ToolUse):
            call_id, name = block.id, block.name
            if call_id in calls or not is_legal(call_id) or not _is_sound(block):
                return None
            calls[call_id] = name
        else:
            return None
    return calls


def _is_sound(call: ToolUse) -> bool:
    view = memoryview(call.input)
    whole = bool(view) and view[0] == _OPEN_BRACE and not call.incomplete
    return whole and bool(call.name.strip()) and call.cache_control is call.issuer is UNSET


def _user_says(turn: Turn, pending: dict[str, str]) -> bool | None:
    """Whether a plain, healthy user turn says something besides its results.

    None if it is not such a turn, or does not begin with one real result for each call.
    """
    if turn.role != "user" or not turn.blocks:
        return None
    waiting = pending.copy()
    said = False
    for block in turn.blocks:
        if isinstance(block, ToolResult):
            content, name = block.content, waiting.pop(block.tool_use_id, None)
            if name is None or not isinstance(content, str) or said:
                return None
            if not (block.cache_control is block.issuer is UNSET):
                return None
            if may_be_placeholder(content) and is_placeholder(block, name, block.tool_use_id):
                return None
        elif isinstance(block, Text) and _is_plain(block):
            said = True
        else:
            return None
    return None if waiting else said


def _is_plain(block: Text) -> bool:
    text = block.text
    return bool(text) and not text.isspace() and block.cache_control is block.issuer is UNSET
