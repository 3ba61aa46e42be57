"""Images that were scaled down once, and take the place of the originals in requests: policy ``media = shrink``.

Scaling needs a library whose versions write different bytes, so the core never scales. Its caller gives the result for
an image, by the digest of its data; the log of the session keeps it with the turn that brought the image. Requests are
a function of this log, on any machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec import Raw, Struct, structs

from reknit.pipeline.errors import PolicyError
from reknit.pipeline.history.pieces import FixLog, Message, TrackedBlock, part_of_result
from reknit.pipeline.history.readers.strict import decoded
from reknit.pipeline.model import Image, ToolResult, Turn
from reknit.pipeline.policy import Policy
from reknit.pipeline.targets.fitting import touched
from reknit.pipeline.targets.limits import MediaLimits
from reknit.pipeline.targets.media import Facts, inspect

SCALED: Final = "image_scaled"
# The least of the limits: Anthropic and Bedrock take 2,000 pixels where a request has more than 20 images, and 5 MiB of
# base64. An image is scaled for them when it arrives, whatever the number then is: a scaled one never changes again.
SIDE: Final = 2000
BYTES: Final = 5 * 1024 * 1024

Scale: TypeAlias = Callable[[str], Raw | None]
"""Returns the scaled source of an image in base64, or None if it cannot be scaled. It must always return the same."""


class ScaledImages(Struct, frozen=True):
    """The images of a message that were scaled: the new source of each, by the digest of its data (``digest_of``)."""

    index: int
    images: dict[str, Raw]


def check_scale(policy: Policy, scale: Scale | None) -> None:
    """Check that a policy whose images are scaled has a function that does it.

    Raises:
        PolicyError: it has none.
    """
    if policy.media == "shrink" and scale is None:
        message = (
            "media = shrink needs the extra `media` (pip install 'reknit[media]'), and in a program a function that "
            "scales: scale=reknit.media.scale"
        )
        raise PolicyError("policy", message, path="policy.media")


def scale_from(images: Mapping[str, Raw]) -> Scale:
    """Return the function that finds what was scaled before, by digest."""
    return lambda data: images.get(digest_of(data))


class _Source(Struct, frozen=True, tag_field="type", tag="base64"):
    data: str


_SOURCE: Final = msgspec.json.Decoder(_Source)


def digest_of(data: str) -> str:
    """Return the digest under which a scaled image is stored; ``data`` is the original in base64."""
    return hashlib.sha256(data.encode()).hexdigest()


def is_large(facts: Facts) -> bool:
    """Return True if an image exceeds the least of the limits, and can be scaled."""
    return not (facts.unreadable or facts.headless or facts.cut) and (
        facts.longest_side > SIDE or (facts.encoded_bytes > BYTES and facts.longest_side > 0)
    )


def scaled_in(turn: Turn, scale: Scale, known: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the scaled sources of the images of a turn, by digest, without those that are ``known``."""
    found: dict[str, Raw] = {}
    for image in _images(turn):
        facts = inspect(image.source)
        source = decoded(_SOURCE, image.source)
        if facts is None or source is None or not is_large(facts):
            continue
        name = digest_of(source.data)
        if name not in known and name not in found and (made := scale(source.data)) is not None:
            found[name] = made
    return found


def _images(turn: Turn) -> Iterator[Image]:
    for block in turn.blocks:
        if isinstance(block, Image):
            yield block
        elif isinstance(block, ToolResult) and isinstance(block.content, list):
            yield from (part for part in block.content if isinstance(part, Image))


class ScaledMedia:
    """The scaled images of a session. ``log`` returns those of its log; it is read once an image needs them."""

    def __init__(self, log: Callable[[], Iterable[ScaledImages]] = lambda: ()) -> None:
        self.log = log
        self._known: dict[str, Raw] | None = None

    @property
    def known(self) -> dict[str, Raw]:
        """The scaled sources by digest."""
        if self._known is None:
            self._known = {name: source for entry in self.log() for name, source in entry.images.items()}
        return self._known

    def note(self, entries: Iterable[ScaledImages]) -> None:
        """Read the log again, and take images that come into it."""
        self._known = None
        for entry in entries:
            self.known.update(entry.images)

    def source_for(self, source: Raw, limits: MediaLimits) -> Raw:
        """Return the source that a request under these limits has for an image."""
        facts = inspect(source)
        if facts is None or not _exceeds(facts, limits):
            return source
        found = decoded(_SOURCE, source)
        return source if found is None else self.known.get(digest_of(found.data), source)


def _exceeds(facts: Facts, limits: MediaLimits) -> bool:
    side = limits.many_side or limits.side
    return is_large(facts) and (0 < side < facts.longest_side or 0 < limits.image_bytes < facts.encoded_bytes)


def scaled_message(message: Message, media: ScaledMedia, limits: MediaLimits, book: FixLog) -> Message:
    """Return a message with the scaled images that requests under these limits have."""
    pieces = [_scaled(piece, media, limits, book) for piece in message.pieces]
    if all(after is before for after, before in zip(pieces, message.pieces, strict=True)):
        return message
    return structs.replace(message, pieces=pieces)


def _scaled(piece: TrackedBlock, media: ScaledMedia, limits: MediaLimits, book: FixLog) -> TrackedBlock:
    block = piece.block
    if isinstance(block, Image):
        source = media.source_for(block.source, limits)
        if source is block.source:
            return piece
        return book.change(
            SCALED, piece, structs.replace(block, source=source), detail=_described(block.source, source)
        )
    if not isinstance(block, ToolResult) or not isinstance(block.content, list):
        return piece
    content, is_changed = list(block.content), False
    for at, part in enumerate(block.content):
        if isinstance(part, Image) and (source := media.source_for(part.source, limits)) is not part.source:
            smaller = structs.replace(part, source=source)
            detail = _described(part.source, source)
            book.change(SCALED, part_of_result(piece, part, at), smaller, detail=detail)
            content[at], is_changed = smaller, True
    if not is_changed:
        return piece
    return touched(structs.replace(piece, block=structs.replace(block, content=content)), SCALED)


def _described(before: Raw, after: Raw) -> str:
    """Describe a change by sides, never by words of the image."""
    old, new = inspect(before), inspect(after)
    if old is None or new is None:
        return ""
    return f"{old.width} x {old.height} pixels to {new.width} x {new.height}"
