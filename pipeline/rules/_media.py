"""The limits of media as the judges know them, and the number of a PDF's pages.

The writers have a table of their own (``reknit.pipeline.targets.limits``), so that each cross-checks the other.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

from msgspec import Struct


class MediaLimits(Struct, frozen=True, kw_only=True):
    """One row of the table; 0 where no limit is known.

    Attributes:
        image_bytes: the base64 text of one image.
        side: the longest side of an image, in pixels.
        many: above this many images, no side may be longer than ``many_side``.
        media: images and documents of a request.
        media_of_some: the same for the models with the smaller limit.
        pages: pages of all PDFs, for the models with the smaller limit.
        body_bytes: the whole request.
    """

    image_bytes: int = 0
    side: int = 0
    many: int = 0
    many_side: int = 0
    media: int = 0
    media_of_some: int = 0
    pages: int = 0
    body_bytes: int = 0


# platform.claude.com, "Vision" (100 images with a context window of 200k tokens, 600 with others) and "PDF support";
# anthropics/claude-code#2939, #3334, #3397, #19822, #24541, #49836; charmbracelet/crush#3810.
CLAUDE: Final = MediaLimits(
    image_bytes=5_242_880,
    side=8000,
    many=20,
    many_side=2000,
    media=600,
    media_of_some=100,
    pages=100,
    body_bytes=32 * 1024 * 1024,
)
# docs.aws.amazon.com, "Converse" (20 images of 3.75 MB and 8,000 pixels); boto/boto3#4632; cline/cline#1844;
# accelerated-intelligent-document-processing-on-aws#778, #994 (19.1 MB were taken, 27.7 MB refused).
CONVERSE: Final = MediaLimits(
    image_bytes=5_242_880, side=8000, many=20, many_side=2000, media_of_some=20, body_bytes=20 * 1024 * 1024
)
# ai.google.dev, "Image understanding": a request with inline data has at most 20 MB.
GEMINI: Final = MediaLimits(body_bytes=20 * 1024 * 1024)

_COUNT: Final = re.compile(rb"/Type\s*/Pages\b[^<>]*?/Count\s+(\d{1,6})|/Count\s+(\d{1,6})\b[^<>]*?/Type\s*/Pages\b")


def pages_of(data: str) -> int:
    """Return the number of a PDF's pages by its page tree; 0 if that is compressed, or the data are not base64."""
    try:
        raw = binascii.a2b_base64(data, strict_mode=True)
    except ValueError:
        return 0
    return max((int(found[1] or found[2]) for found in _COUNT.finditer(raw)), default=0)
