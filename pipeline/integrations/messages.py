"""Repair of a list of a framework's messages before it becomes a request.

The structure is repaired as for a request to the target. Messages that the repair does not touch are not written again:
the result names them by their place in the list, so the framework keeps its own objects with everything in them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from reknit.pipeline.errors import ReknitError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.history import History
from reknit.pipeline.history.pieces import TrackedBlock
from reknit.pipeline.history.readers.shapes import ReadResult, read
from reknit.pipeline.integrations.request_body import OnFixes
from reknit.pipeline.integrations.written import Said, WritePieces
from reknit.pipeline.model import Block, Role, Turn
from reknit.pipeline.registry import target_named
from reknit.pipeline.session.arguments import GivenPolicy, policy_from
from reknit.pipeline.session.repair import RequestVariant, ids_written, structure_for
from reknit.pipeline.targets import Setting

Members: TypeAlias = dict[str, Any]
_Message = TypeVar("_Message")
_LOG: Final = logging.getLogger("reknit.integrations")


class NewMessage(Struct, frozen=True):
    """A message that the repair wrote; ``origin`` is the place of the message that it replaces, if there is one."""

    members: Members
    origin: int | None = None


class MessageRepair:
    """Repairs lists of messages of one shape for one target.

    Args:
        source: the shape of the messages, as in ``normalize``.
        write: writes messages of the shape.
        joins: the results of a turn's calls must be in one message, and messages of one role are one.
        target: the API that the model is called by.
        keeps_empty: a message without content has a meaning for the framework.
        model: the model, where its facts matter.
        policy: that of ``normalize``.
        on_fixes: is called with the fixes of each list that is repaired.

    Raises:
        UnknownTargetError: a target does not exist.
        PolicyError: the policy is not valid.
    """

    def __init__(
        self,
        source: str,
        write: WritePieces,
        target: str,
        *,
        joins: bool = False,
        keeps_empty: bool = False,
        model: str | None = None,
        policy: GivenPolicy = None,
        on_fixes: OnFixes | None = None,
    ) -> None:
        self._source, self._write, self._on_fixes = source, write, on_fixes
        self._joins, self._keeps_empty = joins, keeps_empty
        self._variant = RequestVariant(target_named(target))
        self._policy, self._setting = policy_from(policy), Setting(model=model)

    def repaired(
        self,
        messages: Sequence[_Message],
        dump: Callable[[Sequence[_Message]], list[Any]],
        load: Callable[[Members, _Message | None], _Message],
    ) -> list[_Message] | None:
        """Return a repaired list, in which untouched messages are the same objects; None if nothing needs a repair.

        A list that cannot be read is left as it is, with a warning in the log: an agent must not fail by its repair.

        Args:
            messages: the framework's own objects.
            dump: returns them as JSON values.
            load: makes an object of a new message, and of the object that it replaces, if there is one.
        """
        try:
            done = self.attempt(messages, dump, load)
        except Exception as error:  # noqa: BLE001  the frameworks' classes raise anything, and the call must be made
            is_known = isinstance(error, ReknitError)
            _LOG.warning("the history cannot be repaired and is passed on unchanged: %s", error, exc_info=not is_known)
            return None
        if done is None:
            return None
        found, fixes = done
        if self._on_fixes is not None:
            self._on_fixes(fixes)
        return found

    def attempt(
        self,
        messages: Sequence[_Message],
        dump: Callable[[Sequence[_Message]], list[Any]],
        load: Callable[[Members, _Message | None], _Message],
    ) -> tuple[list[_Message], list[Fix]] | None:
        """Return a repaired list as `repaired` does, with its fixes; raise an error for a list that cannot be read."""
        done = self._entries(dump(messages))
        if done is None:
            return None
        entries, fixes = done
        found = [
            messages[entry] if isinstance(entry, int) else load(entry.members, _at(messages, entry.origin))
            for entry in entries
        ]
        return found, fixes

    def _entries(self, dumped: list[Any]) -> tuple[list[int | NewMessage], list[Fix]] | None:
        """Return places of untouched messages and new messages, with the fixes; None if nothing needs a repair."""
        found = read(dumped, self._source)
        turns: Sequence[Turn] = found.conversation.turns
        history = self._history(turns)
        if not (self._keeps_empty or history.structure.blank):
            turns = _with_empty(found, len(dumped))
        for turn in turns:
            history.append(turn)
        messages, fixes, _, _ = history.take_settled()
        end = history.open_messages()
        fixes = [*fixes, *end.fixes]
        if not fixes:
            return None
        said: list[list[Said]] = [[("system", piece)] for piece in history.system]
        said += [[(message.role, piece) for piece in message.pieces] for message in [*messages, *end.messages]]
        entries = self._written(said, turns, len(dumped))
        is_same = entries == list(range(len(dumped)))
        return None if is_same or not entries else (entries, fixes)

    def _history(self, turns: Sequence[Turn]) -> History:
        variant, policy, setting = self._variant, self._policy, self._setting
        structure = structure_for(variant, setting, policy, MappingProxyType({}))
        history = History(policy, structure, ids_written([variant], setting))
        history.log = lambda: iter(turns)
        return history

    def _written(self, messages: Sequence[list[Said]], turns: Sequence[Turn], count: int) -> list[int | NewMessage]:
        blocks = _blocks_by_message(turns)
        # A message that the framework does not send to a model, such as a notice, has no turn and stays in its place.
        unsent = [at for at in range(count) if at not in blocks]
        ids = {turn.index: turn.id for turn in reversed(turns)}
        pieces = list(chain.from_iterable(messages))
        entries: list[int | NewMessage] = []
        named: set[int] = set()
        for said in messages if self._joins else _by_origin(pieces):
            origin = next((place for _, piece in said if (place := _origin(piece)) is not None), None)
            while origin is not None and unsent and unsent[0] < origin:
                entries.append(unsent.pop(0))
            if origin is not None and _is_whole(said, blocks[origin]):
                entries.append(origin)
                continue
            own = origin if origin not in named else None
            named.update([] if origin is None else [origin])
            for role, group in groupby(said, key=lambda each: each[0]):
                changed = [piece for _, piece in group]
                for members in self._write(role, changed, None if own is None else ids[own], pieces):
                    entries.append(NewMessage(members, own))
                    own = None
        return [*entries, *unsent]


def _with_empty(found: ReadResult, count: int) -> Sequence[Turn]:
    """Return the turns of a history, with one for each message in which the reader found nothing.

    A message that the framework does not send has no turn either, but a fix.
    """
    turns = found.conversation.turns
    known = {turn.index for turn in turns} | {_index(fix.path) for fix in found.fixes}
    empty = [Turn(role="user", blocks=(), index=at) for at in range(count) if at not in known]
    return sorted([*turns, *empty], key=attrgetter("index")) if empty else turns


def _index(path: str) -> int:
    number = path.split(".")[1] if "." in path else ""
    return int(number) if number.isdigit() else -1


def _by_origin(pieces: Sequence[Said]) -> list[list[Said]]:
    return [list(group) for _, group in groupby(pieces, key=lambda each: _origin(each[1]))]


def _at(messages: Sequence[_Message], place: int | None) -> _Message | None:
    return None if place is None else messages[place]


def _origin(piece: TrackedBlock) -> int | None:
    return None if piece.fate == "synthesised" or piece.turn < 0 else piece.turn


def _is_whole(said: Sequence[Said], blocks: Sequence[tuple[Role, Block]]) -> bool:
    """Return True if these pieces are all that a message held, as it held them."""
    return len(said) == len(blocks) and all(
        # An id that the reader made is in no message.
        role == its_role and (piece.block == block or (piece.came_as is not None and piece.fate == "kept"))
        for (role, piece), (its_role, block) in zip(said, blocks, strict=True)
    )


def _blocks_by_message(turns: Sequence[Turn]) -> Mapping[int, list[tuple[Role, Block]]]:
    found: dict[int, list[tuple[Role, Block]]] = {}
    for turn in turns:
        found.setdefault(turn.index, []).extend((turn.role, block) for block in turn.blocks)
    return found
