"""Blocks that the canonical form does not have: a provider's own, or what nobody knows, with its JSON as it came."""

from __future__ import annotations

from typing import Final, get_args

import msgspec
from msgspec import UNSET, Raw

from pipeline.model import Block
from pipeline.streams.events import BlockStarted
from pipeline.streams.fields import Fields

CANONICAL: Final = frozenset(str(block.__struct_config__.tag) for block in get_args(Block))


def own_block(kind: str, members: Fields) -> tuple[str, Raw]:
    """The type and the JSON of such a block: its members, with its type among them.

    What names itself like a block of the canonical form, and could not be read as one, must not pass for one later: it
    is of the type ``unknown`` and stands in the member ``came``.
    """
    if not kind or kind in CANONICAL:
        return "unknown", Raw(msgspec.json.encode({"type": "unknown", "came": members}))
    return kind, Raw(msgspec.json.encode({"type": kind} | members))


def other_answer(number: int, started: BlockStarted) -> BlockStarted:
    """The block of another answer than the first (a chat's choice, a candidate of Gemini's).

    It is shown as it grows, and its type keeps it out of what the model is told that it said. A block of the source's
    own type stands in the member ``block``.
    """
    about: dict[str, object] = {"type": "choice", "choice": number, "of": started.kind}
    if started.tool_id is not None:
        about |= {"id": started.tool_id, "name": started.name}
    if started.raw is not UNSET:
        about["block"] = started.raw
    return BlockStarted(index=started.index, kind="choice", name=started.name, raw=Raw(msgspec.json.encode(about)))
