"""Media that a session's requests leave out because they would exceed a target's limits.

A provider limits the number of media of a request, the sides of images among many, and the bytes of the body. Where a
history exceeds such a limit, its oldest media become lines of text, in steps: each step goes down to 70 % of the limit,
so that the prefix of requests changes rarely. Media of the current turn (everything after the last answer) are
replaced last, and only as many as is necessary. A medium that became a line of text stays one.

The steps are a function of the turns in the order of the log, so a history that is read whole, turn by turn, or from
records gives equal requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock, block_path, part_of_result
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.model import Block, Document, Image, Text, ToolResult, Turn, has_media
from reknit.pipeline.session.prefix import PrefixChange
from reknit.pipeline.session.scaled import ScaledMedia
from reknit.pipeline.targets import Setting
from reknit.pipeline.targets.fitting import touched
from reknit.pipeline.targets.limits import NO_LIMITS, MediaLimits, limits_of
from reknit.pipeline.targets.media import Facts, document_fault, inspect

CODE: Final = "media_over_limit"
BEYOND_LIMITS: Final = "limits"
"""The prefix reset of a request for which media of settled turns became lines of text."""
# What a step leaves of a limit.
_LEFT: Final = 0.7
# A body is estimated, not measured: it may differ by the members around each block.
_FULL: Final = 0.99
# Below this part of a body's limit media do not count, and nothing else is measured.
_FEW: Final = 0.125

# Turns whose size is not known yet, before they are measured anyway.
_MOST_UNMEASURED: Final = 256

# Bytes of a tool's members besides its schema, as an estimate.
_TOOL: Final = 512

_Medium: TypeAlias = Image | Document
Limits: TypeAlias = Mapping[str, tuple[MediaLimits, int]]
_Size: TypeAlias = Callable[[], int]
_encode = msgspec.json.Encoder().encode


class MediaStubs(Struct, frozen=True, array_like=True):
    """The media of one target that are lines of text: all before a message of the input, and single ones after it.

    ``more`` are keys (``_keyed``).
    """

    before: int = 0
    more: frozenset[str] = frozenset()

    def has(self, key: str) -> bool:
        return index_of(key) < self.before or key in self.more

    def upto(self, count: int) -> MediaStubs:
        """Return those of the first ``count`` messages."""
        more = frozenset(key for key in self.more if index_of(key) < count)
        return MediaStubs(min(self.before, count), more)

    def __bool__(self) -> bool:
        return bool(self.before or self.more)


NO_STUBS: Final = MediaStubs()


class _Source(Struct, frozen=True):
    type: str = ""


_source: Final = msgspec.json.Decoder(_Source)
# Documents of text, which are no media for a provider.
_TEXTS: Final = frozenset({"text", "content"})


class _Live(Struct, frozen=True, gc=False):
    """One medium that requests hold."""

    key: str
    bytes: int
    is_image: bool = True
    is_wide: bool = False


def index_of(key: str) -> int:
    """Return the index of the input message that a medium came in."""
    return int(key.split(".", 2)[1].partition("#")[0])


def _keyed(path: str, block: Block) -> Iterator[tuple[str, int, _Medium]]:
    """Yield the media of a block with their keys and their places in a result; -1 for the block itself.

    What was synthesised has no place in the input, and no key.
    """
    if not path.split(".", 2)[1:2] or not path.split(".", 2)[1].isdecimal():
        return
    if isinstance(block, (Image, Document)):
        yield path, -1, block
    elif isinstance(block, ToolResult) and isinstance(block.content, list):
        number = 0
        for at, part in enumerate(block.content):
            if isinstance(part, (Image, Document)):
                yield f"{path}#{number}", at, part
                number += 1


def holds_stub(turn: Turn, stubs: MediaStubs) -> bool:
    """Return True if a medium of a turn is a line of text in requests."""
    if not has_media(turn):
        return False
    placed = (_keyed(block_path(turn, at), block) for at, block in enumerate(turn.blocks))
    return any(stubs.has(key) for media in placed for key, _, _ in media)


class MediaTally:
    """The media of a history that one target's requests hold, and those that became lines of text."""

    def __init__(
        self, limits: MediaLimits, head_bytes: int, stubs: MediaStubs = NO_STUBS, scaled: ScaledMedia | None = None
    ) -> None:
        self.stubs = stubs
        self._scaled = scaled
        self._limits = limits
        self._keys: list[str] = []  # of all media after ``stubs.before``
        self._live: list[_Live] = []
        self._bytes = 0
        # Media that have not been looked at. Few media exceed no limit, whatever they are.
        self._unseen: list[tuple[str, _Medium]] = []
        self._unseen_bytes = 0
        most = [each for each in (limits.media, limits.many) if each]
        self._few = min(most, default=0)
        self._current = 0  # the index of the first message after the last answer
        # Everything besides media. Turns are measured when it matters.
        self._rest = head_bytes
        self._unmeasured: list[Turn] = []

    def take(self, turn: Turn, *, is_new: bool) -> None:
        """Take a turn, and replace media by lines of text where the history exceeds a limit.

        ``is_new``: it holds media.
        """
        if turn.role == "assistant":
            self._current = turn.index + 1
        self._unmeasured.append(turn)
        if len(self._unmeasured) > _MOST_UNMEASURED:
            self._measure()
        if is_new:
            self._add(turn)
        # A text of the user's changes nothing but the length of the body, which only heavy media make matter.
        matters = is_new or turn.role == "assistant" or self._is_heavy()
        if matters and (self._live or self._unseen) and self._may_exceed():
            self._see()
            self._step()

    def changed_since(self, old: MediaStubs, before: int) -> int:
        """Return the first message before ``before`` whose media became lines of text since ``old``; -1 if none did."""
        found = (index_of(key) for key in self._keys if self.stubs.has(key) != old.has(key))
        first = min((index for index in found if index < before), default=-1)
        self._keys = [key for key in self._keys if index_of(key) >= self.stubs.before]
        return first

    def _may_exceed(self) -> bool:
        """Return False if the media are too few, and too small, to exceed a limit."""
        return 0 < self._few < len(self._live) + len(self._unseen) or self._is_heavy()

    def _is_heavy(self) -> bool:
        return 0 < self._limits.body_bytes * _FEW < self._bytes + self._unseen_bytes

    def _see(self) -> None:
        for key, medium in self._unseen:
            live = self._counted(key, medium)
            if live is not None:
                self._live.append(live)
                self._bytes += live.bytes
        self._unseen, self._unseen_bytes = [], 0

    def _add(self, turn: Turn) -> None:
        for at, block in enumerate(turn.blocks):
            for key, _, medium in _keyed(block_path(turn, at), block):
                self._rest -= len(bytes(medium.source))
                self._keys.append(key)
                if not self.stubs.has(key):
                    sent = self._as_sent(medium)
                    self._unseen.append((key, sent))
                    self._unseen_bytes += len(bytes(sent.source))

    def _as_sent(self, medium: _Medium) -> _Medium:
        """Return a medium as requests have it: an image that was scaled is smaller."""
        if self._scaled is None or not isinstance(medium, Image):
            return medium
        source = self._scaled.source_for(medium.source, self._limits)
        return medium if source is medium.source else structs.replace(medium, source=source)

    def _counted(self, key: str, medium: _Medium) -> _Live | None:
        """Describe a medium as it counts for the limits; None if the target leaves it out for a reason of its own."""
        limits, size = self._limits, len(bytes(medium.source))
        if isinstance(medium, Document):
            source = decoded(_source, medium.source)
            is_text = source is None or source.type in _TEXTS
            return None if is_text or document_fault(medium.source) else _Live(key, size, is_image=False)
        facts = inspect(medium.source)
        if facts is None:
            return _Live(key, size)
        if facts.fault(limits.types.__contains__, limits):
            return None
        return _Live(key, size, is_wide=0 < limits.many_side < facts.longest_side)

    def _step(self) -> None:
        limits = self._limits
        if 0 < limits.media < len(self._live):
            self._shrink(lambda: len(self._live), limits.media)
        if 0 < limits.many < self._images() and any(each.is_wide for each in self._live):
            self._narrow()
        if limits.body_bytes and self._bytes > limits.body_bytes * _FEW:
            self._measure()
            self._shrink(lambda: self._bytes + self._rest, int(limits.body_bytes * _FULL), limits.body_bytes)

    def _images(self) -> int:
        return sum(each.is_image for each in self._live)

    def _narrow(self) -> None:
        """Leave no wide image among many: the wide ones go, unless the current turn has one; then the oldest."""
        old = [each for each in self._live if each.is_wide and index_of(each.key) < self._current]
        if not any(each.is_wide and index_of(each.key) >= self._current for each in self._live):
            self._drop(old)
            return
        self._shrink(self._images, self._limits.many)

    def _shrink(self, size: _Size, most: int, limit: int = 0) -> None:
        """Replace the oldest media until 70 % of the limit are left; those of the current turn until it is kept."""
        if size() <= most:
            return
        left = int((limit or most) * _LEFT)
        while self._live and size() > (left if index_of(self._live[0].key) < self._current else most):
            self._drop(self._live[:1])

    def _drop(self, media: Sequence[_Live]) -> None:
        gone = {each.key for each in media}
        self._live = [each for each in self._live if each.key not in gone]
        self._bytes -= sum(each.bytes for each in media)
        self.stubs = self._compact(self.stubs.more | gone)

    def _compact(self, more: frozenset[str]) -> MediaStubs:
        """Return the stubs with as few keys as possible: all before the oldest medium that stays are stubs."""
        before = max(self.stubs.before, index_of(self._live[0].key) if self._live else self._current)
        return MediaStubs(before, frozenset(key for key in more if index_of(key) >= before))

    def _measure(self) -> None:
        self._rest += sum(len(_encode(turn.blocks)) for turn in self._unmeasured)
        self._unmeasured = []


class MediaBounds:
    """The media that limits leave out of a session's requests, by target; they are lines of text.

    ``is_new``: no turn has been taken yet. ``is_on``: limits are kept. The tallies are made once there are media.
    """

    def __init__(self, stubs: Mapping[str, MediaStubs] = MappingProxyType({}), *, is_new: bool = True) -> None:
        self.stubs = dict(stubs)
        self.is_on = True
        self.scaled: ScaledMedia | None = None
        self._is_plain = is_new
        self._tallies: dict[str, MediaTally] | None = None

    def take(
        self,
        turns: Sequence[Turn],
        limits: Limits,
        earlier: Callable[[], Iterable[Turn]],
        may_have_media: Callable[[], bool],
    ) -> list[PrefixChange]:
        """Take turns after the ``earlier`` ones of the log; return the changes of media of earlier messages."""
        if not self.is_on or not turns or not limits:
            return []
        if self._tallies is None:
            if self._is_plain and not any(map(has_media, turns)):
                return []
            self._is_plain = not may_have_media()
            if self._is_plain and not any(map(has_media, turns)):
                return []
            self._tallies = {
                name: MediaTally(each, head, self.stubs.get(name, NO_STUBS), self.scaled)
                for name, (each, head) in limits.items()
            }
            for turn in earlier():
                self._take(turn)
        return [change for turn in turns for change in self._take(turn)]

    def _take(self, turn: Turn) -> list[PrefixChange]:
        changes: list[PrefixChange] = []
        is_new = has_media(turn)
        for name, tally in (self._tallies or {}).items():
            old = tally.stubs
            tally.take(turn, is_new=is_new)
            if tally.stubs is not old:
                self.stubs[name] = tally.stubs
                first = tally.changed_since(old, turn.index)
                if first >= 0:
                    changes.append(PrefixChange(name, first, turn.index, BEYOND_LIMITS))
        return changes

    def weigh_again(self) -> None:
        """Weigh the media of the log again with the next turn: some of it was cut."""
        self._is_plain = self._is_plain and self._tallies is None
        self._tallies = None

    def again(self, stubs: Mapping[str, MediaStubs]) -> MediaBounds:
        """Return bounds for a log that is read again."""
        bounds = MediaBounds(stubs)
        bounds.is_on = self.is_on
        return bounds

    def cut(self, count: int) -> None:
        """Forget what came after the first ``count`` messages."""
        for name, stubs in list(self.stubs.items()):
            self.stubs[name] = stubs.upto(count)
        self.weigh_again()

    def saved(self) -> dict[str, MediaStubs] | UnsetType:
        return {name: stubs for name, stubs in self.stubs.items() if stubs} or UNSET


def limits_for(targets: Iterable[str], setting: Setting) -> Limits:
    """Return the limits of those targets that have any, with the bytes of a request's head."""
    found = {name: limits_of(name, setting.model) for name in targets}
    if not any(limits != NO_LIMITS for limits in found.values()):
        return {}
    system = setting.system or ""
    head = len(system if isinstance(system, str) else bytes(system))
    head += sum(len(bytes(tool.input_schema)) + _TOOL for tool in setting.tools)
    return {name: (limits, head) for name, limits in found.items() if limits != NO_LIMITS}


def stubbed_message(message: Message, stubs: MediaStubs, book: FixLog) -> Message:
    """Return a message with lines of text for the media that are stubs."""
    if not stubs:
        return message
    pieces = [_stubbed(piece, stubs, book) for piece in message.pieces]
    if all(after is before for after, before in zip(pieces, message.pieces, strict=True)):
        return message
    return structs.replace(message, pieces=pieces)


def _stubbed(piece: TrackedBlock, stubs: MediaStubs, book: FixLog) -> TrackedBlock:
    media = [(at, medium) for key, at, medium in _keyed(piece.path, piece.block) if stubs.has(key)]
    if not media:
        return piece
    block = piece.block
    if not isinstance(block, ToolResult) or not isinstance(block.content, list):
        return book.change(CODE, piece, _line(media[0][1]), detail=_described(media[0][1]))
    content = list(block.content)
    for at, medium in media:
        inner = book.change(CODE, part_of_result(piece, medium, at), _line(medium), detail=_described(medium))
        assert isinstance(inner.block, Text)  # noqa: S101  that is what it was changed to
        content[at] = inner.block
    return touched(structs.replace(piece, block=structs.replace(block, content=content)), CODE)


def _line(medium: _Medium) -> Text:
    what = "Image" if isinstance(medium, Image) else "Document"
    words = f"[{what} left out, because the conversation has more media than a request may hold: {_described(medium)}]"
    return Text(text=words, cache_control=medium.cache_control)


def _described(medium: _Medium) -> str:
    """Describe a medium by its type and size, never by words of its own."""
    facts = inspect(medium.source)
    if facts is None:
        return "not part of the request"
    sides = f", {facts.width} x {facts.height} pixels" if facts.longest_side else ""
    return f"{_type_of(facts, medium)}{sides}, {facts.encoded_bytes} bytes of base64"


def _type_of(facts: Facts, medium: _Medium) -> str:
    return facts.sniffed or ("image" if isinstance(medium, Image) else "document")
