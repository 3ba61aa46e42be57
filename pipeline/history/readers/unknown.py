"""Histories of no known shape: what is refused rather than read with most of it lost, and the sentence that says so.

A history of a known shape with damage is repaired. It is refused where none of its messages has a role and all have
members that no shape has, where a message has a role and nothing else that is known, and where a message lists calls or
results in a member that no shape has. A framework's shape is decided by its keys, so a history in which many blocks, or
a call or a result, are of other types is of a shape that only looks like it. In a provider's shape a few blocks of
unknown types may be types that the provider has added; a history that is mostly such blocks is refused. None of 6,800
recorded and broken histories is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from reknit.pipeline.errors import InputError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.history.pieces import NATIVE_TYPES, SETTINGS, block_path, is_native
from reknit.pipeline.history.readers.fields import as_object
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.model import Turn, Unknown

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
# A member that is named like calls or results, and is in no shape.
_LISTS_TOOLS: Final = re.compile(r"tool|call|action|invocation|function|step|result|observation", re.IGNORECASE)
# Types of media, in any shape, and the keys of parts without a type.
_MEDIA: Final = re.compile(r"image|file|pdf|audio|video|document|media|url", re.IGNORECASE)
_KEYS: Final = frozenset(
    {"text", "thought", "thoughtSignature", "thought_signature", "toolUse", "toolResult", SETTINGS}
)
_PROVIDERS: Final = frozenset(each.provider for each in NATIVE_TYPES)
# So many blocks of unknown types are more than what a provider has added, where they are more than that share.
_MANY: Final = 3
_HALF: Final = 0.5
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
    for fix in fixes:
        root, _, name = fix.path.rpartition(".")
        index = root.rpartition(".")[2]
        if fix.code == "field_dropped" and root.count(".") == 1 and index.isdecimal() and _LISTS_TOOLS.search(name):
            item = items[int(index)]
            if bytes(as_object(item, root).get(name, b"")).startswith(b"[{"):
                raise unknown_shape(root, item, name)
    _check_types(turns)


def _check_types(turns: Sequence[Turn]) -> None:
    """Refuse a history of a provider's shape that is mostly blocks of types that no shape has."""
    placed = [(block, block_path(turn, at)) for turn in turns for at, block in enumerate(turn.blocks)]
    unknown = [(_names(block), path) for block, path in placed if isinstance(block, Unknown) and not _is_known(block)]
    count, share = len(unknown), len(unknown) / max(len(placed), 1)
    is_untyped = share == 1 and all(isinstance(block, Unknown) and not block.kind for block, _ in placed)
    if not unknown or not ((count >= _MANY and share > _SHARE) or (count > 1 and share > _HALF) or is_untyped):
        return
    kinds = ", ".join(dict.fromkeys(name[:40] for names, _ in unknown[:_MOST_MEMBERS] for name in names[:1]))
    message = f"{count} of {len(placed)} blocks are of types that no shape has ({kinds}); {_WHAT_TO_DO}"
    raise InputError("unknown_shape", message, path=unknown[0][1])


def _names(block: Unknown) -> list[str]:
    """Return the type of a block, or the keys of a part without a type."""
    if block.kind:
        return [block.kind]
    return list(as_object(block.raw, "")) if starts_with(block.raw, b"{") else []


def _is_known(block: Unknown) -> bool:
    return any(
        name in _KEYS or _MEDIA.search(name) or any(is_native(provider, name) for provider in _PROVIDERS)
        for name in _names(block)
    )


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


def unknown_shape(place: str, item: Raw, strange: str = "") -> InputError:
    """The error for a history of no known shape: the place, why it does not fit, the nearest shapes, and what to do.

    ``strange`` is a member that keeps it from being of the nearest ones.
    """
    names = list(as_object(item, ""))
    listed = ", ".join(name[:40] for name in names[:_MOST_MEMBERS])
    members = f"with the members {listed}" if listed else "without members"
    what = f"a message {members}, and no shape that Reknit reads has such a message"

    def distance(shape: str) -> tuple[int, str]:
        missing = len(_missing(shape, names))
        return 2 * missing - len(_NEEDS[shape]), shape

    near = sorted(_NEEDS, key=distance)[:_NEAREST]
    reasons = (f"{shape} ({_reason(_missing(shape, names), strange)})" for shape in near)
    message = f"{what}; the nearest are {' and '.join(reasons)}; {_WHAT_TO_DO}"
    return InputError("unknown_shape", message, path=place)


def _missing(shape: str, names: Sequence[str]) -> list[str]:
    return [need for need in _NEEDS[shape] if need not in names]


def _reason(missing: Sequence[str], strange: str) -> str:
    if missing:
        return f"{' and '.join(missing)} missing"
    return f"it has no {strange[:40]}" if strange else "it has other types of blocks"
