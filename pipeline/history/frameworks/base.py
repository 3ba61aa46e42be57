"""The description of a framework's shape, and the result of reading messages in it.

A shape is recognised by the keys of its messages or of the document around them. Its reader takes every member that has
a meaning in the conversation, ignores the members that describe the run (times, usage, ids of threads), and records
every other member as dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.fields import Fields, Notes
from reknit.pipeline.history.readers.rawjson import starts_with
from reknit.pipeline.history.readers.strict import FrameworkShape, Shape
from reknit.pipeline.history.readers.tolerant import Placed, as_kind
from reknit.pipeline.model import Block, Role, ToolResult, ToolUse, Turn

Members: TypeAlias = Mapping[str, Raw]
"""The members of an object, as written."""

ReadOther: TypeAlias = Callable[[Raw, int, Shape], Turn]
"""Reads the message at an index by the reader of a provider's shape."""

NULL: Final = Raw(b"null")


class Item(Struct, frozen=True):
    """A message of a framework, with its index in the list."""

    fields: Fields
    index: int

    @property
    def path(self) -> str:
        return self.fields.path


class Framed(Struct, frozen=True, kw_only=True):
    """The messages of a document, with the other members that the document has.

    ``system`` and ``tools`` are in one of the forms that `reknit.pipeline.history.readers.head` reads.
    """

    messages: list[Raw]
    system: Raw | None = None
    tools: Raw | None = None
    model: str | None = None
    provider: str = ""
    dropped: Mapping[str, Raw] = {}


class Reading:
    """Collects the turns of messages, the fixes, and the members that are no part of the conversation.

    Attributes:
        system: texts that the shape keeps apart from the messages.
        provider: the provider that the document names, if it does.
        model: the model that the document names.
        whole: True if the list is a whole history; False for a single message.
        ids_made: whether a call or result of the turn that is read has an id that its tool's name gives.
    """

    def __init__(
        self,
        notes: Notes,
        read_other: ReadOther,
        *,
        provider: str = "",
        model: str | None = None,
        whole: bool = True,
    ) -> None:
        self.notes = notes
        self.turns: list[Turn] = []
        self.system: list[str] = []
        self.skipped: Counter[str] = Counter()
        self.provider = provider
        self.model = model
        self.whole = whole
        self.ids_made = False
        self._read_other = read_other

    def read_as(self, shape: Shape, item: Item) -> None:
        """Read a message that is one of a provider's shape, by that shape's reader."""
        self.turns.append(self._read_other(Raw(item.fields.whole), item.index, shape))

    def add(
        self,
        role: Role,
        placed: Sequence[Placed],
        item: Item,
        *,
        turn_id: str | None = None,
        synthetic: bool = False,
        incomplete: bool = False,
    ) -> None:
        """Add a turn of these blocks; no blocks add no turn."""
        if not placed:
            return
        ids_made, self.ids_made = self.ids_made, False
        blocks, paths = zip(*placed, strict=True)
        self.turns.append(
            Turn(
                role=role,
                blocks=blocks,
                index=item.index,
                id=turn_id or None,
                paths=paths,
                synthetic=synthetic and role == "user",
                incomplete=incomplete and role == "assistant",
                ids_made=ids_made,
            )
        )

    def leave_out(self, fields: Fields, kind: str) -> None:
        """Record a message or part that the framework does not send to a model."""
        self.skipped[kind] += 1
        self.notes.add_fix("field_dropped", fields.path, kind, before=bytes(fields.whole))
        fields.clear()

    def add_steps(self, placed: Sequence[Placed], item: Item, *, turn_id: str | None, incomplete: bool = False) -> None:
        """Add an assistant's message that has results next to their calls: each group of results is a user's turn."""
        run: list[Placed] = []
        held: list[Placed] = []
        is_first = True

        def flush(*, last: bool = False) -> None:
            nonlocal is_first
            self.add("assistant", run, item, turn_id=turn_id if is_first else None, incomplete=incomplete and last)
            is_first = is_first and not run
            self.add("user", held, item)
            run.clear()
            held.clear()

        for block, path in placed:
            if isinstance(block, ToolResult):
                held.append((block, path))
                continue
            # Parallel calls have their results next to them, so only other content begins a new step.
            if held and not isinstance(block, ToolUse):
                flush()
            run.append((block, path))
        flush(last=not held)


class Framework(Struct, frozen=True, kw_only=True):
    """A shape in which a framework stores histories.

    Attributes:
        name: its name for ``source``.
        title: the frameworks and programs that write it, for people.
        forms: the forms that are read.
        tried: the versions whose histories were read.
        decides: whether the members of a message can only be of this shape.
        fits: whether a message that decides no shape can be one of this shape.
        read: reads messages.
        frame: the messages of a document, or None if it is no document of this shape.
        lines: whether the messages are the lines of a file.
        grows: whether a message comes again under its id while an answer arrives.
    """

    name: FrameworkShape
    title: str
    forms: str
    tried: str
    decides: Callable[[Members], bool]
    fits: Callable[[Members], bool]
    read: Callable[[Reading, Sequence[Item]], None]
    frame: Callable[[Members], Framed | None] = lambda _: None
    lines: bool = False
    grows: bool = False


def finish(fields: Fields, *known: str) -> None:
    """Ignore members that describe the run, and record the members that were not read."""
    fields.ignore(*known)
    fields.drop_rest()


def is_string(members: Members, key: str) -> bool:
    return starts_with(members.get(key, NULL), b'"')


def is_list(members: Members, key: str) -> bool:
    return starts_with(members.get(key, NULL), b"[")


def is_object(members: Members, key: str) -> bool:
    return starts_with(members.get(key, NULL), b"{")


def word(members: Members, key: str) -> str:
    """The string that a member holds, ``""`` for anything else."""
    return as_kind(members.get(key))


def role_of(fields: Fields, roles: Mapping[str, Role]) -> Role:
    """The role that a message names, by the shape's names for it.

    Raises:
        InputError: no such role.
    """
    path, name = fields.at("role"), fields.take_string("role")
    role = roles.get((name or "").lower())
    if role is None:
        raise InputError("unknown_role", f"expected one of {', '.join(roles)}, found {(name or '')[:40]!r}", path=path)
    return role


def cached(block: Block, mark: Raw) -> Block:
    """Return a block with a cache breakpoint; a block that cannot have one is unchanged."""
    return (
        block
        if not hasattr(block, "cache_control") or block.cache_control is not UNSET
        else replace(block, cache_control=mark)
    )
