"""Export a session as a document that restores it elsewhere: for people and ``reknit normalize``, with the exact log.

Messages cannot hold everything that a reader made of them (the owner of an item, generated ids), so the document
includes the log, and an import reads the log.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, structs

from reknit.pipeline.history.writers import Written, write
from reknit.pipeline.history.writers.base import Writer
from reknit.pipeline.model import Block, Conversation, Turn, Unknown
from reknit.pipeline.session import Session
from reknit.topics.records import HistoryRestored, PolicyChange, SessionOpened


class Document(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A history with its setting, as ``reknit normalize`` reads it."""

    messages: list[Raw]
    model: str | None = None
    system: Raw | UnsetType = UNSET
    tools: list[Raw] = []
    params: dict[str, Raw] = {}


class Export(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One session: its id, its history, whom it is for, and the log that restores it byte for byte."""

    session: str
    document: Document
    targets: tuple[str, ...]
    policy: PolicyChange
    log: Raw


def export(name: str, session: Session) -> Export:
    setting = session.setting
    system: Raw | UnsetType = UNSET if setting.system is None else _raw(setting.system)
    document = Document(
        messages=[_raw(_message(turn)) for turn in session.turns],
        model=setting.model,
        system=system,
        tools=[tool.raw if isinstance(tool.raw, Raw) else _raw(tool) for tool in setting.tools],
        params=setting.params,
    )
    policy = PolicyChange(**structs.asdict(session.policy))
    return Export(session=name, document=document, targets=session.targets, policy=policy, log=Raw(session.log()))


def export_as(session: Session, writer: Writer) -> Written:
    """Return the history of a session in the shape of a framework."""
    setting = session.setting
    conversation = Conversation(
        turns=tuple(session.turns),
        system=setting.system,
        tools=setting.tools,
        model=setting.model,
        params=setting.params,
    )
    return write(conversation, writer)


def restoring(found: Export) -> tuple[SessionOpened, HistoryRestored]:
    """The records that make the session again, where they are written to ``agent.turns``."""
    given = found.document
    opened = SessionOpened(
        targets=found.targets,
        model=given.model,
        # Null would be the other worker's default.
        system=_raw([]) if given.system is UNSET else given.system,
        tools=_raw(given.tools),
        params=given.params,
        policy=found.policy,
    )
    return opened, HistoryRestored(messages=_raw(given.messages), log=found.log)


def _message(turn: Turn) -> dict[str, Any]:
    named = {} if turn.id is None else {"id": turn.id}
    return {"role": turn.role, **named, "content": [_block(block) for block in turn.blocks]}


def _block(block: Block) -> Block | Raw:
    return block.raw if isinstance(block, Unknown) else block


def _raw(value: object) -> Raw:
    return value if isinstance(value, Raw) else Raw(msgspec.json.encode(value))
