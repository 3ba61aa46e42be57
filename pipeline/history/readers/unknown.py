"""Histories of no known shape: what is refused rather than read with most of it lost, and the sentence that says so.

A history of a known shape with damage is repaired. It is refused where none of its messages has a role and all have
members that no shape has, and where a message has a role and nothing else that is known. Blocks of unknown types are no
reason in a provider's shape: they may be types that the provider has added. A framework's shape is decided by its keys,
so a history in which many blocks, or a call or a result, are of other types is of a shape that only looks like it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.readers.fields import as_object
from reknit.pipeline.model import Turn

# More messages without known content than this share are no damage.
_SHARE: Final = 0.2
# The members that a message of a shape has, of which the nearest shapes are found.
_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "anthropic": ("role", "content"),
    "openai-chat": ("role", "content", "tool_calls"),
    "openai-responses": ("type", "role", "content"),
    "gemini": ("role", "parts"),
    "claude-code": ("type", "uuid", "message"),
    "langchain": ("type", "data"),
    "pydantic-ai": ("kind", "parts"),
    "ag-ui": ("id", "role", "content"),
    "ai-sdk-ui": ("id", "role", "parts"),
    "adk-events": ("author", "invocationId", "content"),
    "opencode": ("info", "parts"),
    "letta": ("message_type", "date"),
    "semantic-kernel": ("role", "content_type", "items"),
    "autogen": ("type", "source", "content"),
    "llama-index": ("role", "blocks"),
    "pi-session": ("type", "parentId", "message"),
    "copilot-events": ("type", "parentId", "data"),
}
# The types of calls and results, in any shape.
_OF_TOOLS: Final = re.compile(r"tool|function|call|result", re.IGNORECASE)
_NEAREST: Final = 2
_MOST_MEMBERS: Final = 6
_WHAT_TO_DO: Final = "name the shape (--from, source), or give the messages in a shape that docs/works-with.md lists"


def check_known(turns: Sequence[Turn], fixes: Sequence[Fix], items: Sequence[Raw]) -> None:
    """Refuse a history that was read, where most of it is of no known shape.

    Args:
        turns: the turns that were read.
        fixes: the fixes of reading them.
        items: the messages.

    Raises:
        InputError: code ``unknown_shape``.
    """
    roles = sum(fix.code == "field_missing" and fix.path.endswith(".role") for fix in fixes)
    dropped = {".".join(fix.path.split(".", 2)[:2]) for fix in fixes if fix.code == "field_dropped"}
    if turns and roles == len(turns) and all(turn.place in dropped for turn in turns):
        raise unknown_shape(turns[0].place, items[0])
    empty = [turn for turn in turns if not turn.blocks and turn.place in dropped and _says_nothing(items[turn.index])]
    if len(empty) > _SHARE * len(turns):
        raise unknown_shape(empty[0].place, items[empty[0].index])


def check_blocks(framework: str, turns: Sequence[Turn], unknown: Sequence[tuple[str, str]]) -> None:
    """Refuse a history of a framework's shape with too many blocks of types that the shape does not have.

    Args:
        framework: the name of the shape.
        turns: the turns that were read.
        unknown: the types of these blocks, with their places.

    Raises:
        InputError: code ``unknown_shape``.
    """
    count = sum(len(turn.blocks) for turn in turns)
    of_tools = [each for each in unknown if _OF_TOOLS.search(each[0])]
    if not of_tools and len(unknown) <= _SHARE * count:
        return
    kinds = ", ".join(dict.fromkeys(kind[:40] for kind, _ in unknown[:_MOST_MEMBERS]))
    message = f"{len(unknown)} of {count} blocks are of types that {framework} does not have ({kinds}); {_WHAT_TO_DO}"
    raise InputError("unknown_shape", message, path=(of_tools or unknown)[0][1])


def _says_nothing(item: Raw) -> bool:
    """Return True if a message has no member in which any shape has what is said."""
    members = as_object(item, "")
    return not members.keys() & {"content", "parts", "message", "tool_calls", "refusal", "audio", "reasoning_content"}


def unknown_shape(place: str, item: Raw) -> InputError:
    """The error for a history of no known shape: the place, why it does not fit, the nearest shapes, and what to do."""
    names = list(as_object(item, ""))
    listed = ", ".join(name[:40] for name in names[:_MOST_MEMBERS])
    members = f"with the members {listed}" if listed else "without members"
    what = f"a message {members}, and no shape that Reknit reads has such a message"

    def distance(shape: str) -> tuple[int, str]:
        missing = len(_missing(shape, names))
        return 2 * missing - len(_NEEDS[shape]), shape

    near = sorted(_NEEDS, key=distance)[:_NEAREST]
    reasons = (f"{shape} ({_reason(_missing(shape, names))})" for shape in near)
    message = f"{what}; the nearest are {' and '.join(reasons)}; {_WHAT_TO_DO}"
    return InputError("unknown_shape", message, path=place)


def _missing(shape: str, names: Sequence[str]) -> list[str]:
    return [need for need in _NEEDS[shape] if need not in names]


def _reason(missing: Sequence[str]) -> str:
    return f"{' and '.join(missing)} missing" if missing else "it has other types of blocks"
