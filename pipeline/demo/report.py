"""What came of a session, from the records that the pipeline published and nothing else.

At least once means that a record may be there twice. Each one names its cause, so what was seen before adds nothing:
requests by their id, fixes and dead letters by the source record, items by the rules of ``topics.items``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from pipeline.demo.recordings import Events, Recording
from pipeline.demo.refusals import Refusal, refusals
from pipeline.rules import validate
from topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_REQUESTS, SESSION_ITEMS
from topics import headers as names
from topics.headers import Headers
from topics.items import AnyItem, ItemRetracted
from topics.records import RECORDED, FixRecord
from topics.reducer import Entry, View

_ITEMS = msgspec.json.Decoder(AnyItem)
_FIXES = msgspec.json.Decoder(FixRecord)
# Blocks that a screen shows. What the agent program says to itself is not the user's.
_SHOWN = ("text", "thinking", "tool_use")
# The code of a dead letter that stands for a request which could not be mended.
_REJECTED = "rejected"


class Piece(Struct, frozen=True, kw_only=True):
    """A block of a stream: its type, and its text or, of a call, the tool's name and the input as far as it came."""

    type: str
    text: str


class Letter(Struct, frozen=True, kw_only=True):
    """Why a record is among the dead letters."""

    code: str
    message: str


class SessionReport(Struct, frozen=True, kw_only=True):
    """One session's story. Counts are of records; ``valid`` is None where no request left.

    ``met`` is what the provider would have said, ``fixes`` what was mended (how often, by code), ``lossy`` how many of
    these lost content or added words; ``promoted``, ``retracted`` and ``incomplete`` are what a screen would have
    missed, kept or shown as whole; ``unseen`` results that no item had shown, ``notices`` errors that the stream told
    of.
    """

    session: str
    kind: Literal["history", "stream"]
    title: str
    source: str
    met: list[Refusal]
    fixes: dict[str, int]
    lossy: int
    requests: dict[str, int]
    valid: bool | None
    rejected: list[str]
    dead_letters: list[Letter]
    items: int
    promoted: list[Piece]
    retracted: list[Piece]
    incomplete: list[Piece]
    unseen: list[str]
    notices: list[str]
    recorded: int


class Gathered:
    """The published records of one session, as they arrive."""

    def __init__(self) -> None:
        self._requests: dict[bytes, tuple[str, str | None, bytes]] = {}
        self._fixes: dict[tuple[int, int], FixRecord] = {}
        self._letters: dict[tuple[bytes, bytes, bytes], Letter] = {}
        self._recorded: set[str] = set()
        self._view = View()
        self._retracted: dict[str, Piece] = {}

    @property
    def recorded(self) -> int:
        """How many turns the worker has appended to the session's log."""
        return len(self._recorded)

    def add(self, topic: str, value: bytes | None, headers: Headers) -> None:
        """Take one record; ``topic`` is the contract's name."""
        said = dict(headers)
        if topic == DEAD_LETTERS:
            self._add_letter(said)
        elif value is None:
            return
        elif topic == SESSION_ITEMS:
            self._add_item(value)
        elif topic == HISTORY_FIXES:
            fix = _FIXES.decode(value)
            self._fixes[fix.offset, fix.number] = fix
        elif topic == PROVIDER_REQUESTS:
            model = said.get(names.MODEL)
            target = said[names.TARGET].decode()
            self._requests[said[names.REQUEST_ID]] = (target, model.decode() if model else None, value)
        elif topic == AGENT_TURNS:
            self._add_turn(value)

    def _add_letter(self, said: Mapping[str, bytes]) -> None:
        place = (said[names.ERROR_TOPIC], said[names.ERROR_PARTITION], said[names.ERROR_OFFSET])
        message = said.get(names.ERROR_MESSAGE, b"").decode()
        self._letters[place] = Letter(code=said[names.ERROR_CODE].decode(), message=message)

    def _add_item(self, value: bytes) -> None:
        item = _ITEMS.decode(value)
        if isinstance(item, ItemRetracted) and item.item_id not in self._retracted:
            withdrawn = next((entry for entry in self._view.entries if entry.item_id == item.item_id), None)
            if withdrawn is not None:
                self._retracted[item.item_id] = _piece(withdrawn)
        self._view.apply(item)

    def _add_turn(self, value: bytes) -> None:
        try:
            record: dict[str, Any] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return  # the client's own torn record
        if record.get("origin") == RECORDED:
            self._recorded.add(record["id"])

    def report(self, recording: Recording) -> SessionReport:
        """The story so far."""
        fixes = list(self._fixes.values())
        letters = list(self._letters.values())
        shown = [entry for entry in self._view.entries if entry.item_type in _SHOWN]
        results = self._view.results.values()
        return SessionReport(
            session=recording.session,
            kind="stream" if any(isinstance(step, Events) for step in recording.feed) else "history",
            title=recording.title,
            source=recording.source,
            met=refusals(recording),
            fixes=dict(sorted(Counter(fix.code for fix in fixes).items())),
            lossy=sum(not fix.lossless for fix in fixes),
            requests=dict(sorted(Counter(target for target, _, _ in self._requests.values()).items())),
            valid=self._valid(),
            rejected=[letter.message for letter in letters if letter.code == _REJECTED],
            dead_letters=[letter for letter in letters if letter.code != _REJECTED],
            items=len(shown),
            promoted=[_piece(entry) for entry in shown if entry.origin == "promoted" and entry.parent is None],
            retracted=list(self._retracted.values()),
            incomplete=[_piece(entry) for entry in shown if entry.incomplete],
            unseen=[result.result or "" for result in results if result.unseen],
            notices=[notice.message for notice in self._view.notices.values()],
            recorded=self.recorded,
        )

    def _valid(self) -> bool | None:
        """Whether the provider's rules, asked again, find nothing in any request that left."""
        if not self._requests:
            return None
        return not any(
            violation.severity == "hard"
            for target, model, body in self._requests.values()
            for violation in validate(body, target, model)
        )


def _piece(entry: Entry) -> Piece:
    if entry.item_type != "tool_use":
        return Piece(type=entry.item_type, text=entry.text)
    given = bytes(entry.input).decode() if entry.input is not None else entry.text
    return Piece(type=entry.item_type, text=f"{entry.started.name} {given}".strip())
