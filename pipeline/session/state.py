"""A session's state as records: a small head, and segments that are written once.

A segment holds what settled since the previous one: the encoded chunks of each target, the log of the received
messages, from which a new target starts, and the open end at that time, from which a rewind continues. The head holds
the open end and settled data that does not fill a segment.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.errors import InputError, InternalError
from reknit.pipeline.fixes import Fix
from reknit.pipeline.healing.memory import Memory
from reknit.pipeline.history import History
from reknit.pipeline.history.call_ids import SettledCall
from reknit.pipeline.history.exchanges import Exchange
from reknit.pipeline.history.pieces import LedgerEntry, TrackedBlock
from reknit.pipeline.history.readers.message import Decided, DecidedShape
from reknit.pipeline.model import Tool, Turn, has_media
from reknit.pipeline.policy import Policy
from reknit.pipeline.session.bindings import SavedBindings
from reknit.pipeline.session.fit import SavedFit
from reknit.pipeline.session.media import MediaStubs
from reknit.pipeline.session.scaled import ScaledImages
from reknit.pipeline.session.settled_state import SettledHead, SettledSlice
from reknit.pipeline.targets import Setting

# The layout of heads and segments. A session of another layout is read from its log.
LAYOUT = 1
# The first format of state that has late results; below it they are left out.
LATE_RESULTS = 3
# The first format that has what providers refused; below it, nothing is healed.
HEALING = 3
# The first format with segments of which only the log holds.
LOG_ONLY = 3


class Logged(Struct, frozen=True, omit_defaults=True):
    """One entry of the saved log: a turn, scaled images of the next one, or the fixes that reading a message took."""

    turn: Turn | None = None
    fixes: list[Fix] = []
    scaled: ScaledImages | None = None


LogEntry: TypeAlias = Turn | ScaledImages | list[Fix]


class WholeLog(Struct, frozen=True, forbid_unknown_fields=True):
    """A log that leaves its session: how many messages came in, its entries, and the shape that they decided.

    ``bound`` is what was sent to a model whose reasoning is bound to it, if there is one, without chunks; ``refused``
    is what providers refused.
    """

    messages: int
    entries: list[Logged]
    shape: DecidedShape = "each"
    shape_since: int = -1
    bound: SavedBindings | UnsetType = UNSET
    refused: Memory | UnsetType = UNSET


class Mended(Struct, array_like=True):
    """The settled result of repair for these targets."""

    targets: list[str]
    ids: list[str | None] = []
    fixes: list[Fix] = []
    dropped: list[LedgerEntry] = []
    calls: list[SettledCall] = []


class Slice(Struct, array_like=True):
    """The additions to a session. ``log`` is the JSON of a list of ``Logged``.

    ``ids`` to ``calls`` belong to the first machine; ``others`` are those of targets with another structure.
    """

    log: bytes = b"[]"
    ids: list[str | None] = []
    fixes: list[Fix] = []
    dropped: list[LedgerEntry] = []
    calls: list[SettledCall] = []
    tracks: dict[str, SettledSlice] = {}
    others: list[Mended] = []

    def mended(self, target: str) -> Mended:
        """Return what the machine of one of the targets has settled."""
        first = Mended([], self.ids, self.fixes, self.dropped, self.calls)
        return next((other for other in self.others if target in other.targets), first)


class Segment(Struct, array_like=True):
    """One settled segment. Its number distinguishes it from a segment of an abandoned history."""

    number: int
    layout: int
    gained: Slice
    open_end: bytes = b""  # an ``OpenEnd``; segments of 0.1 have none


class SavedMachine(Struct):
    """The open end of the history as one more machine has it, and the targets that it works for."""

    targets: list[str]
    history: bytes


class OpenEnd(Struct, kw_only=True):
    """The state after the settled part: the number of received messages, and the states of machines and variants.

    ``history`` is the first machine's state, as JSON because it holds raw JSON. It serves every target that none of the
    ``others`` works for.
    """

    count: int
    history: bytes
    tracks: dict[str, SettledHead]
    others: list[SavedMachine] = []

    def machine(self, target: str) -> tuple[int, bytes]:
        """The number and the saved history of the machine of one of the targets."""
        found = ((at, other.history) for at, other in enumerate(self.others, 1) if target in other.targets)
        return next(found, (0, self.history))


class SessionHead(OpenEnd, kw_only=True):
    """The head record. ``setting`` is JSON.

    ``shape`` and ``shape_since`` are the shape that the messages decided (`Decided`). State without them is of a
    version that read each message separately, and continues to do so. ``media`` are the media of each target that are
    lines of text, ``fit`` what is cut of a long history, ``bound`` what was sent to a model whose reasoning is bound to
    it, and ``refused`` what providers refused; format 3 has them, where there are any. With ``keeps_answered``, another
    program sends the requests, and ``bound`` has which ones it says were answered. Of the first ``log_only`` segments
    only the log holds (``Archive``).
    """

    layout: int
    targets: list[str]
    policy: Policy
    setting: bytes
    segments: list[tuple[int, bytes]]
    next_segment: int
    gained: Slice
    shape: DecidedShape = "each"
    shape_since: int = -1
    media: dict[str, MediaStubs] | UnsetType = UNSET
    log_only: int | UnsetType = UNSET
    fit: SavedFit | UnsetType = UNSET
    bound: SavedBindings | UnsetType = UNSET
    refused: Memory | UnsetType = UNSET
    keeps_answered: bool | UnsetType = UNSET


class HistoryState(Struct, omit_defaults=True, kw_only=True):
    """The open end of a history."""

    exchanges: list[Exchange] = []
    system: list[TrackedBlock] = []
    messages: int = 0
    turns: int = 0
    number: int = 0
    changed: list[int] = []
    user_spoke_last: bool = False
    cut: list[str] = []
    referred: bool = False
    last_item: str = ""
    held: list[TrackedBlock] = []
    spoken_at: int = 0


class SavedSetting(Struct, omit_defaults=True, kw_only=True):
    """A setting; the system prompt is kept as JSON."""

    system: Raw | UnsetType = UNSET
    tools: list[Tool] = []
    model: str | None = None
    params: dict[str, Raw] = {}


class Archive:
    """The log of a session, and the list of its segments. ``log`` is what no segment holds yet.

    Of the first ``log_only`` segments only the log holds: the history was repaired and encoded again after them. So a
    change of the prefix does not write the log again.
    """

    def __init__(self, next_segment: int = 0) -> None:
        self.log_only = 0
        self.log: list[LogEntry] = []
        self.packed: list[bytes] = []
        self.open_ends: list[bytes] = []
        self.segments: list[tuple[int, bytes]] = []
        self.next_segment = next_segment
        # The places of the turns that came with an id of their own; None where they have to be looked for first.
        self._named: dict[str, list[int]] | None = {}

    def keep(self, turns: Sequence[Turn]) -> None:
        """Add turns to the log."""
        self.log += turns
        if self._named is not None:
            self._name(turns, self._named)

    def keep_history(self, turns: Sequence[Turn]) -> None:
        """Add the turns of a whole history, which is seldom gone back in."""
        self.log += turns
        self._named = None

    def last_named(self, name: str) -> int:
        """The index of the last message with an id of its own; -1 if there is none."""
        if self._named is None:
            # Once for each time that the session is read: it takes as long as reading it.
            self._named = {}
            self._name(self.turns(), self._named)
        return self._named.get(name, [-1])[-1]

    @staticmethod
    def _name(turns: Iterable[Turn], named: dict[str, list[int]]) -> None:
        for turn in turns:
            if turn.id is not None:
                named.setdefault(turn.id, []).append(turn.index)

    def turns(self) -> Iterator[Turn]:
        """The turns of the log, oldest first."""
        return (entry for entry in self.entries() if isinstance(entry, Turn))

    def last_turns(self) -> list[Turn]:
        """The turns of the last message that has any."""
        for entries in chain((self.log,), map(decode_log, reversed(self.packed))):
            found = [entry for entry in entries if isinstance(entry, Turn)]
            if found:
                return [turn for turn in found if turn.index == found[-1].index]
        return []

    def entries(self, skipped: int = 0) -> Iterator[LogEntry]:
        """The log after N segments, oldest first."""
        for packed in self.packed[skipped:]:
            yield from decode_log(packed)
        yield from self.log

    def scaled(self) -> Iterator[ScaledImages]:
        """The scaled images of the log; only what is packed with some is read."""
        for packed in self.packed:
            if _SCALED in packed:
                yield from (entry for entry in decode_log(packed) if isinstance(entry, ScaledImages))
        yield from (entry for entry in self.log if isinstance(entry, ScaledImages))

    def may_have_media(self) -> bool:
        """Return False if no turn of the log holds an image or a document, by the bytes of what is packed."""
        if any(media in packed for packed in self.packed for media in _MEDIA):
            return True
        return any(isinstance(entry, Turn) and has_media(entry) for entry in self.log)

    def open_end(self, segments: int) -> OpenEnd | None:
        """The open end when the last of N segments was written, if it is known."""
        saved = self.open_ends[segments - 1]
        return _OPEN_END.decode(saved) if saved else None

    def cut(self, segments: int) -> list[LogEntry]:
        """Drop everything after N segments; return the entries."""
        entries = list(self.entries(segments))
        for entry in entries:
            if isinstance(entry, Turn) and entry.id is not None and self._named is not None:
                places = self._named[entry.id]
                places.pop()
                if not places:
                    del self._named[entry.id]
        del self.packed[segments:], self.open_ends[segments:], self.segments[segments:]
        self.log = []
        return entries

    def cut_log(self, length: int) -> None:
        """Drop all but the first entries of the log that no segment holds."""
        del self.log[length:]
        self._named = None

    def has_segment(self, number: int) -> bool:
        at = bisect_left(self.segments, (number,))
        return at < len(self.segments) and self.segments[at][0] == number

    def pack_log(self) -> list[tuple[int, bytes]]:
        """Pack the beginning of a large log into segments that hold nothing else, where no other segment does.

        A history that was read again has its whole log to write, which may be more than one record can hold.
        """
        packed: list[tuple[int, bytes]] = []
        if self.log_only < len(self.segments):
            return packed
        first, size = 0, 0
        for at, entry in enumerate(self.log[:-1], 1):
            size += len(_encode_json(_as_logged(entry)))
            if size >= _LARGE_LOG:
                packed.append(self._add_segment(Slice(log=encode_log(self.log[first:at])), b""))
                first, size = at, 0
        self.log = self.log[first:]
        self.log_only = len(self.segments)
        return packed

    def pack(self, gained: Slice, end: OpenEnd) -> tuple[int, bytes]:
        """Pack what was gained, its log included, into a new segment, with the open end after it."""
        packed = self._add_segment(gained, _encode(end))
        self.log = []
        return packed

    def _add_segment(self, gained: Slice, open_end: bytes) -> tuple[int, bytes]:
        number = self.next_segment
        record = _encode(Segment(number, LAYOUT, gained, open_end))
        self.open_ends.append(open_end)
        self.segments.append((number, _digest(record)))
        self.next_segment += 1
        self.packed.append(gained.log)
        return number, record

    def unpack(self, head: SessionHead, records: Iterable[bytes]) -> list[Slice]:
        """Take back the segments that a head names, in order; others are leftovers of an abandoned history.

        Returns what was gained in those that hold more than the log.

        Raises:
            InternalError: one is missing, or is not what was written.
        """
        found = {}
        for record in records:
            segment = _SEGMENT.decode(record)
            found[segment.number] = (segment, record)
        slices = []
        for number, expected in head.segments:
            if number not in found or _digest(found[number][1]) != expected:
                raise InternalError("state_incomplete", f"segment {number} is missing, or is not what was written")
            segment, _ = found[number]
            slices.append(segment.gained)
            self.packed.append(segment.gained.log)
            self.open_ends.append(segment.open_end)
        self.segments = list(head.segments)
        self._named = None
        self.next_segment = head.next_segment
        self.log = decode_log(head.gained.log)
        self.log_only = 0 if head.log_only is UNSET else head.log_only
        return slices[self.log_only :]


# The tags of images and documents in the log's JSON; text has its quotes escaped.
_MEDIA = (b'"type":"image"', b'"type":"document"')
# A segment that holds only a part of the log is at least this large, and larger by less than one message.
_LARGE_LOG = 1024 * 1024
# Where the log's JSON has scaled images.
_SCALED = b'"scaled":{'
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode
encode_head = _encode
decode_head = msgspec.msgpack.Decoder(SessionHead).decode
_OPEN_END = msgspec.msgpack.Decoder(OpenEnd)
_SEGMENT = msgspec.msgpack.Decoder(Segment)
_LOG = msgspec.json.Decoder(list[Logged])
_WHOLE_LOG = msgspec.json.Decoder(WholeLog)
_HISTORY = msgspec.json.Decoder(HistoryState)
_SETTING = msgspec.json.Decoder(SavedSetting)


def encode_log(log: list[LogEntry]) -> bytes:
    return _encode_json(_logged(log))


def _logged(log: list[LogEntry]) -> list[Logged]:
    return [_as_logged(entry) for entry in log]


def _as_logged(entry: LogEntry) -> Logged:
    if isinstance(entry, Turn):
        return Logged(turn=entry)
    return Logged(scaled=entry) if isinstance(entry, ScaledImages) else Logged(fixes=entry)


def _entry(logged: Logged) -> LogEntry:
    return logged.turn or logged.scaled or logged.fixes


def decode_log(log: bytes) -> list[LogEntry]:
    return [_entry(logged) for logged in _LOG.decode(log)]


def encode_whole_log(
    count: int,
    log: list[LogEntry],
    decided: Decided,
    bound: SavedBindings | UnsetType = UNSET,
    refused: Memory | UnsetType = UNSET,
) -> bytes:
    return _encode_json(WholeLog(count, _logged(log), decided.shape, decided.since, bound, refused))


def decode_whole_log(
    data: bytes,
) -> tuple[int, list[LogEntry], Decided, SavedBindings | UnsetType, Memory | UnsetType]:
    """The number of messages received, the entries, the shape that they decided, what was sent, and what was refused.

    Raises:
        InputError: it is no log.
    """
    try:
        found = _WHOLE_LOG.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("bad_log", f"the log cannot be read: {error}", path="log") from error
    turns = [entry.turn for entry in found.entries if entry.turn is not None]
    places = [turn.index for turn in turns]
    if places != sorted(places) or not all(0 <= place < found.messages for place in places):
        raise InputError("bad_log", "the log's turns are not in order", path="log")
    if any(turn.paths is not None and len(turn.paths) != len(turn.blocks) for turn in turns):
        raise InputError("bad_log", "a turn of the log names other blocks than it has", path="log")
    if found.bound is not UNSET and any(sent.chunks for sent in found.bound.sent.values()):
        raise InputError("bad_log", "what was sent refers to settled messages that the log does not have", path="log")
    if found.refused is not UNSET and not all(memory.is_whole() for memory in found.refused.values()):
        raise InputError("bad_log", "what was refused refers to healings that the log does not have", path="log")
    entries = [_entry(logged) for logged in found.entries]
    return found.messages, entries, Decided(found.shape, found.shape_since), found.bound, found.refused


def save_history(history: History) -> bytes:
    """The open end of a history as JSON; what is settled must have been taken."""
    return _encode_json(
        HistoryState(
            exchanges=history.exchanges,
            system=history.system,
            messages=history.messages,
            turns=history.turns,
            number=history.number,
            changed=sorted(history.changed),
            user_spoke_last=history.user_spoke_last,
            cut=sorted(history.cut),
            referred=history.referred,
            last_item=history.last_item,
            held=history.held,
            spoken_at=history.spoken_at,
        )
    )


def load_open_end(data: bytes, history: History) -> None:
    """Restore a history that knows the ids of all settled calls to the saved open end."""
    state = _HISTORY.decode(data)
    history.exchanges = state.exchanges
    history.system = state.system
    history.messages, history.turns, history.number = state.messages, state.turns, state.number
    history.changed = set(state.changed)
    history.cut = set(state.cut)
    history.referred, history.last_item = state.referred, state.last_item
    history.user_spoke_last = state.user_spoke_last
    history.held, history.spoken_at = state.held, state.spoken_at
    was_noted = history.spoken_at or not any(exchange.calls for exchange in history.exchanges)
    if not was_noted and history.policy.late_result == "replace":
        _note_shown(history)
    for exchange in state.exchanges:
        history.ids.begin_turn()
        for call in exchange.calls if not exchange.sealed else ():
            history.ids.reload_open(call.original, exchange.tool_use(call).id)


def _note_shown(history: History) -> None:
    """Take the results before the last exchange for shown, and its own for not: below format 3 no state says."""
    history.spoken_at = history.turns
    for call in history.exchanges[-1].calls if history.exchanges else ():
        call.came = history.turns


def save_setting(setting: Setting) -> bytes:
    system = UNSET if setting.system is None else Raw(_encode_json(setting.system))
    return _encode_json(
        SavedSetting(system=system, tools=list(setting.tools), model=setting.model, params=setting.params)
    )


def load_setting(data: bytes) -> Setting:
    saved = _SETTING.decode(data)
    system: str | Raw | None = None if saved.system is UNSET else saved.system
    if isinstance(system, Raw) and bytes(system)[:1] == b'"':
        system = msgspec.json.decode(system, type=str)
    return Setting(system=system, tools=tuple(saved.tools), model=saved.model, params=saved.params)


def _digest(record: bytes) -> bytes:
    return hashlib.sha256(record).digest()[:16]
