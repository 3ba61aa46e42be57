"""Formats and sizes of images, from the first bytes of their base64 text."""

from __future__ import annotations

import base64
import struct

import pytest

from reknit.pipeline.rules._pictures import Picture, look


def jpeg(width: int, height: int, metadata: int = 0) -> bytes:
    """A JPEG up to its frame header, with ``metadata`` bytes of application segments before it."""
    segments = b""
    while metadata > 0:
        size = min(metadata, 60_000)
        segments += b"\xff\xe1" + struct.pack(">H", size + 2) + b"\0" * size
        metadata -= size
    frame = b"\xff\xc2\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03" + b"\0" * 9
    return b"\xff\xd8\xff\xe0\x00\x04ab" + segments + b"\xff\xdb\x00\x03a" + b"\xff" + frame


def webp(kind: bytes, payload: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + kind + b"\0\0\0\0" + payload + b"\0" * 12


@pytest.mark.parametrize(
    ("raw", "picture"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 640, 480) + b"\0" * 9, Picture("image/png", 640, 480)),
        (b"GIF87a" + struct.pack("<HH", 7, 9) + b"\0" * 9, Picture("image/gif", 7, 9)),
        (jpeg(3000, 20), Picture("image/jpeg", 3000, 20)),
        (jpeg(3000, 20, metadata=200_000), Picture("image/jpeg", 3000, 20)),
        (jpeg(3000, 20)[:-10], Picture("image/jpeg", 3000, 20)),  # cut after the size
        # A restart marker has no length.
        (jpeg(3000, 20).replace(b"\xff\xdb", b"\xff\xd0\xff\xdb"), Picture("image/jpeg", 3000, 20)),
        (jpeg(3000, 20)[:-11], Picture("image/jpeg")),
        (b"\xff\xd8\xff\xdb\x00\x04ab", Picture("image/jpeg")),
        (
            webp(b"VP8X", b"\0\0\0\0" + (2999).to_bytes(3, "little") + (0).to_bytes(3, "little")),
            Picture("image/webp", 3000, 1),
        ),
        (webp(b"VP8 ", b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", 800, 600)), Picture("image/webp", 800, 600)),
        (webp(b"VP8L", b"\x2f" + struct.pack("<I", 799 | 599 << 14)), Picture("image/webp", 800, 600)),
        (b"hello world, no image", Picture(None)),
    ],
)
def test_headers(raw, picture):
    assert look(base64.b64encode(raw).decode()) == picture


@pytest.mark.parametrize("data", ["", "!", "not base64", "iVBORw0KGgo=", base64.b64encode(b"GIF89a").decode(), "AAA"])
def test_data_that_is_not_an_image(data):
    assert look(data) is None
