"""The healthy beginning of a history, found in one pass.

Most histories have nothing to mend. What the machine would take turn by turn and hand out unchanged is found here
by a few comparisons a block; where the least thing is unusual, the stretch ends and the machine takes over. Both give
the same, which a property checks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET, Struct

from pipeline.history.ids import LONGEST_ID, is_legal
from pipeline.history.results import LONGEST_PLACEHOLDER, is_placeholder
from pipeline.model import Policy, Text, ToolResult, ToolUse, Turn

# A user turn, an answer and another user turn: less is no work for the machine either.
_SHORTEST = 3

# Up to this many bytes of ASCII nothing that a reader would have to look for can be wrong with a tool's input.
_SHORT = 256


class Stretch(Struct, frozen=True):
    """The settled turns at the beginning of a history.

    ``turns`` counts them, ``number`` their exchanges as the machine does; ``ids`` are their calls' ids, all answered,
    and ``names`` the tools that are called.
    """

    turns: int
    number: int
    ids: list[str]
    names: set[str]

    def holds(self, policy: Policy) -> bool:
        """Whether the machine would let these turns be under a policy: no calls stripped, none left out."""
        return not policy.strip_tools and policy.missing_result == "synthesise"


def healthy_stretch(turns: Sequence[Turn], harmless: Callable[[bytes], bool]) -> Stretch | None:
    """A beginning that is plain and settled, as far as whole pairs of an answer and a user turn go, or None.

    Plain is text, calls and results that are text or texts, without breakpoints and issuers, and with no free-form
    JSON but inputs; ``harmless`` says of one that is long or not ASCII that it can stay as it is. The stretch ends
    before an assistant turn that is healthy too, so that the machine goes on from there.
    """
    if len(turns) < _SHORTEST or _user_says(turns[0], {}) is None:
        return None
    known: set[str] = set()
    names: set[str] = set()
    ids: list[str] = []
    number = 1
    end, at, ends_number, ends_ids = 0, 1, 0, 0
    for assistant, user in zip(turns[1::2], turns[2::2], strict=False):
        calls = _calls(assistant, known, harmless)
        if calls is None:
            break
        end, ends_number, ends_ids = at, number, len(ids)
        if calls:
            ids += calls
            names.update(calls.values())
        said = _user_says(user, calls)
        if said is None:
            break
        number += 2 if said else 1
        at += 2
    return Stretch(end, ends_number, ids[:ends_ids], names) if end else None


def _calls(turn: Turn, known: set[str], harmless: Callable[[bytes], bool]) -> dict[str, str] | None:
    """The names of a plain, healthy assistant turn's calls, by id; None if it is not one.

    Their ids are added to those that are ``known``, of which no call may have one.
    """
    if turn.role != "assistant" or not turn.blocks:
        return None
    calls: dict[str, str] = {}
    for block in turn.blocks:
        if type(block) is Text:
            # Text behind a call is moved.
            if calls or not block.text or block.text.isspace():
                return None
            if (
                block.refusal
                or block.structured
                or not (block.cache_control is block.issuer is block.citations is UNSET)
            ):
                return None
        elif type(block) is ToolUse:
            call, name, data = block.id, block.name, bytes(block.input)
            if call in known or not name or name.isspace() or data[:1] != b"{":
                return None
            # Most ids are identifiers (toolu_01A, call_7), which costs less to tell than the pattern.
            if not (len(call) <= LONGEST_ID and call.isascii() and call.isidentifier()) and not is_legal(call):
                return None
            if block.incomplete or not (block.cache_control is block.issuer is block.caller is UNSET):
                return None
            if not (len(data) <= _SHORT and data.isascii()) and not harmless(data):
                return None
            known.add(call)
            calls[call] = name
        else:
            return None
    return calls


def _user_says(turn: Turn, calls: dict[str, str]) -> bool | None:
    """Whether a plain, healthy user turn says something besides its results.

    None if it is not such a turn, or does not begin with one real result for each of ``calls``, which are used up.
    """
    if turn.role != "user" or not turn.blocks:
        return None
    said = False
    for block in turn.blocks:
        if type(block) is ToolResult:
            content, name = block.content, calls.pop(block.tool_use_id, None)
            if name is None or said or not (block.cache_control is block.issuer is UNSET):
                return None
            if type(content) is not str and not _are_texts(content):
                return None
            if len(content) <= LONGEST_PLACEHOLDER and is_placeholder(block, name, block.tool_use_id):  # type: ignore[arg-type]  # str or list
                return None
        elif type(block) is Text:
            if not block.text or block.text.isspace():
                return None
            if (
                block.refusal
                or block.structured
                or not (block.cache_control is block.issuer is block.citations is UNSET)
            ):
                return None
            said = True
        else:
            return None
    return None if calls else said


def _are_texts(content: object) -> bool:
    """Whether a result's content is texts that stay as they are, one at least."""
    if type(content) is not list:
        return False
    for part in content:
        if type(part) is not Text or not part.text or part.text.isspace():
            return False
        if part.refusal or part.structured or not (part.cache_control is part.issuer is part.citations is UNSET):
            return False
    return bool(content)
