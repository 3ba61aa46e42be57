"""Scales images down with Pillow (extra ``media``), for policy ``media = shrink``.

Versions of Pillow and its codecs write different bytes for one image. So a worker scales an image once, in a thread,
and stores the result in the object store, under the session and the digest of the original. A replay on another machine
reads it there. It is not in a topic: a topic for it would be as large as all images, and be read to its end by every
worker that takes a partition over.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw, structs

from reknit.pipeline.errors import ReknitError
from reknit.pipeline.inline_images import images_in
from reknit.pipeline.objects import Objects
from reknit.pipeline.policy import Policy
from reknit.pipeline.session.scaled import BYTES, SIDE, Scale, digest_of, is_large
from reknit.pipeline.stages.base import Record
from reknit.pipeline.targets.media import inspect

if TYPE_CHECKING:
    from PIL.Image import Image

# Pixels that are decoded at most; four bytes each. An image of 8,100 x 8,100, which providers refuse, has 66 million.
MOST_PIXELS: Final = 80_000_000
# Base64 text of an image that is looked at; a provider refuses a body of half the size.
_MOST_BYTES: Final = 64 * 1024 * 1024
# An image that is still too large after this many steps is left as it is.
_STEPS: Final = 8
_STEP: Final = 0.7
_JPEG_QUALITY: Final = 85
_FORMATS: Final = ("PNG", "JPEG", "GIF", "WEBP")
_JPEG: Final = "image/jpeg"
_PNG: Final = "image/png"


class ScalingError(ReknitError):
    """Images cannot be scaled as it is configured."""

    fault = "caller"


def has_pillow() -> bool:
    """Return True if Pillow is installed."""
    return find_spec("PIL") is not None


def check_pillow() -> None:
    """Check that Pillow is installed.

    Raises:
        ScalingError: it is not.
    """
    if not has_pillow():
        message = "policy media = shrink needs an extra: pip install 'reknit[media]'"
        raise ScalingError("media_missing", message, path="policy.media")


def check_worker(policy: Policy, objects_url: str) -> bool:
    """Check that a worker with a default policy can scale images if that asks for it; return True if it can scale.

    Raises:
        ScalingError: it cannot, and its policy asks for it.
    """
    if policy.media == "shrink":
        check_pillow()
        if not objects_url:
            message = "policy media = shrink needs an object store for scaled images: set objects.url"
            raise ScalingError("media_no_store", message, path="objects.url")
    return bool(objects_url) and has_pillow()


def scale(data: str) -> Raw | None:
    """Return the source of a smaller image for one in base64; None if it is small enough, or cannot be scaled.

    The number of pixels is read from the header and checked before anything is decoded.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError  # noqa: PLC0415  an optional extra

    if len(data) > _MOST_BYTES:
        return None
    try:
        raw = binascii.a2b_base64(data, strict_mode=True)
        with Image.open(io.BytesIO(raw), formats=_FORMATS) as opened:
            if opened.width * opened.height > MOST_PIXELS:
                return None
            is_photo = opened.format == "JPEG"
            opened.draft("RGB", (2 * SIDE, 2 * SIDE))  # decodes a JPEG at a fraction of its size
            upright = ImageOps.exif_transpose(opened)
            upright.load()
    except (ValueError, OSError, SyntaxError, UnidentifiedImageError, Image.DecompressionBombError):
        return None
    return _smaller(upright, is_photo=is_photo)


def _smaller(image: Image, *, is_photo: bool) -> Raw | None:
    plain = image.convert("RGB" if is_photo else "RGBA" if _has_alpha(image) else "RGB")
    side = min(SIDE, max(plain.size))
    for step in range(_STEPS):
        # A picture of many colours is smaller as JPEG.
        as_jpeg = is_photo or step > 0
        media_type, found = _encoded(plain, side, as_jpeg=as_jpeg)
        text = base64.b64encode(found).decode()
        if len(text) <= BYTES:
            return Raw(msgspec.json.encode({"type": "base64", "media_type": media_type, "data": text}))
        if as_jpeg:
            side = max(1, int(side * _STEP))
    return None


def _has_alpha(image: Image) -> bool:
    return "A" in image.getbands() or "transparency" in image.info


def _encoded(image: Image, side: int, *, as_jpeg: bool) -> tuple[str, bytes]:
    from PIL import Image as Images  # noqa: PLC0415  an optional extra

    factor = side / max(image.size)
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    smaller = image if size == image.size else image.resize(size, Images.Resampling.LANCZOS)
    found = io.BytesIO()
    if as_jpeg:
        _on_white(smaller).save(found, "JPEG", quality=_JPEG_QUALITY)
    else:
        smaller.save(found, "PNG")
    return _JPEG if as_jpeg else _PNG, found.getvalue()


def _on_white(image: Image) -> Image:
    from PIL import Image as Images  # noqa: PLC0415  an optional extra

    if image.mode == "RGB":
        return image
    ground = Images.new("RGB", image.size, "white")
    ground.paste(image, mask=image.getchannel("A"))
    return ground


# Results that a process without a store keeps for the next request of a conversation, in bytes.
_KEPT_BYTES: Final = 64 * 1024 * 1024
_kept: OrderedDict[str, Raw | None] = OrderedDict()


def scale_again(data: str) -> Raw | None:
    """Return the same as ``scale``, without scaling an image that came shortly before."""
    name = digest_of(data)
    if name in _kept:
        _kept.move_to_end(name)
        return _kept[name]
    _kept[name] = made = scale(data)
    while sum(len(bytes(each)) for each in _kept.values() if each is not None) > _KEPT_BYTES:
        _kept.popitem(last=False)
    return made


def scale_if_installed() -> Scale | None:
    """Return the function that scales, None without Pillow; a policy that needs it is refused then."""
    return scale if has_pillow() else None


# In a worker.

# What a record has that gives a session the policy.
_OPENING: Final = (b"shrink", b"session.opened")
# A record of more bytes is decoded in a thread too.
_LARGE_RECORD: Final = 1024 * 1024


def large_images(value: bytes) -> Iterator[str]:
    """Yield the base64 text of each image in a record that is too large, whatever the shape of its message."""
    for data in images_in(value):
        facts = inspect(Raw(msgspec.json.encode({"type": "base64", "data": data})))
        if facts is not None and is_large(facts):
            yield data


def scaler_for(objects: Objects | None, source: Objects | None) -> Scaler | None:
    """Return the scaler of a worker; None without Pillow, or without a store for what it makes."""
    if objects is None or source is None or not has_pillow():
        return None
    return Scaler(objects, [] if source is objects else [source])


class Scaler:
    """Scales the images of records, each once: what the object stores have is reused.

    ``stores`` are those of the pipeline, and of the pipeline that it reads.
    """

    def __init__(self, objects: Objects, sources: Iterable[Objects] = ()) -> None:
        self._objects = objects
        self._sources = [objects, *sources]
        # Each may need hundreds of MiB.
        self._one = asyncio.Semaphore(1)

    async def with_scaled(self, records: Sequence[Record], scales: Callable[[bytes], bool]) -> Sequence[Record]:
        """Return records with the scaled images that their messages need.

        ``scales`` says whether a session's policy may ask for them, as of the records before these. One of these may
        change that.

        Raises:
            ConnectionError: the object store does not answer.
        """
        named = {record.key for record in records if all(words in (record.value or b"") for words in _OPENING)}
        return [
            await self._with_scaled(record) if record.key and (record.key in named or scales(record.key)) else record
            for record in records
        ]

    async def _with_scaled(self, record: Record) -> Record:
        if record.key is None or record.value is None:
            return record
        found: dict[str, Raw] = {}
        look: Callable[[], list[str]] = partial(list, large_images(record.value))
        for data in look() if len(record.value) < _LARGE_RECORD else await asyncio.to_thread(look):
            name = digest_of(data)
            if name not in found and (source := await self._scaled(record.key, name, data)) is not None:
                found[name] = source
        return structs.replace(record, scaled=found) if found else record

    async def _scaled(self, session: bytes, name: str, data: str) -> Raw | None:
        for objects in self._sources:
            stored = await objects.get_made(session, name)
            if stored is not None:
                if objects is not self._objects:
                    await self._objects.put_made(session, name, stored)
                return Raw(stored) if stored else None
        async with self._one:
            made = await asyncio.to_thread(scale, data)
        # Nothing is stored for an image that cannot be scaled, so that another version does not scale it later.
        await self._objects.put_made(session, name, b"" if made is None else bytes(made))
        return made
