"""Reasoning that is bound to its prefix, and the models that make such reasoning.

From Claude Fable 5.1 on a signature is only valid while the system prompt, the tools and every message before it are
those of the request that it answered ("preserved thinking"). ``LINES`` lists the known lines of models with the first
version that checks. A line that is not known here is one of later models, and checks from the first checked version on.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.policy import Endpoint

Version: TypeAlias = tuple[int, int]

Void: TypeAlias = Sequence[tuple[int, int]]
"""Runs of input messages, from one index to before another, whose reasoning was issued after what has changed since."""

NOT_VOID: Final[Void] = ()


class Line(Struct, frozen=True, kw_only=True):
    """One line of Claude models.

    Attributes:
        name: the line's name.
        since: the first version that checks the prefix; None if no known one does.
        source: where this was seen.
    """

    name: str
    since: Version | None
    source: str


_PRESERVED: Final = "build-with-claude/preserved-thinking; verified in pydantic/pydantic-ai#7984"
LINES: Final = (
    Line(name="fable", since=(5, 1), source=_PRESERVED),
    Line(name="opus", since=(5, 5), source=_PRESERVED),
    Line(name="sonnet", since=(5, 5), source=_PRESERVED),
    Line(name="haiku", since=(5, 5), source=_PRESERVED),
    Line(name="mythos", since=(5, 5), source=f"5.1 records the prefix and does not check it: {_PRESERVED}"),
)
# The first version of a line that the table does not know: the first one that checks at all.
_OTHER_LINES: Final = (5, 1)

# The version may follow the line or precede it: claude-fable-5-1, claude-5.1-fable. A date is no minor version.
_NAME: Final = re.compile(
    r"claude-(?:(?P<line>[a-z]+)-)?(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)(?:-(?P<old_line>[a-z]{4,}))?"
)


def is_prefix_bound(model: str | None, endpoint: Endpoint) -> bool:
    """Return True if a model refuses reasoning whose prefix has changed; by its name, at Anthropic's or an unknown one.

    A model without a name may be any, and most check nothing.
    """
    if endpoint.issuer not in {"", "anthropic"}:
        return False
    found = line_and_version(model)
    if found is None:
        return False
    named, version = found
    since = next((line.since for line in LINES if line.name == named), _OTHER_LINES)
    return since is not None and version >= since


def line_and_version(model: str | None) -> tuple[str, Version] | None:
    """Read the line and the version in the name of a Claude model; None in another name."""
    found = _NAME.search((model or "").lower())
    if found is None:
        return None
    return found["line"] or found["old_line"] or "", (int(found["major"]), int(found["minor"] or 0))


def void_of(void: Mapping[str, Void] | None, target: str) -> Void:
    """Return the messages of one target whose reasoning is void."""
    return void.get(target, NOT_VOID) if void else NOT_VOID


def is_void(void: Void, index: int) -> bool:
    """Return True if the reasoning of an input message was issued after something that has changed since."""
    return any(first <= index < end for first, end in void)


class _Message(Struct, frozen=True):
    role: str = ""
    content: list[dict[str, Raw]] | str = ""


_message: Final = msgspec.json.Decoder(_Message)
_REASONING: Final[Collection[bytes]] = frozenset({b'"thinking"', b'"redacted_thinking"'})


def is_answer(message: bytes) -> bool:
    """Return True if a written message is the assistant's."""
    return _message.decode(message).role == "assistant"


def has_reasoning(message: bytes) -> bool:
    """Return True if a written message of Anthropic's or Converse's holds reasoning."""
    content = _message.decode(message).content
    return isinstance(content, list) and any(
        "reasoningContent" in block or bytes(block.get("type", b"")) in _REASONING for block in content
    )
