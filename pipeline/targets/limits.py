"""The limits of media that each provider states, as the writers know them.

A row holds for a target, for models, and for a platform where that matters. The judges have a table of their own
(``reknit.pipeline.rules._media``), written from refusals, so that each cross-checks the other. Limits count base64
text, as providers do, and not the decoded bytes.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct, structs


class MediaLimits(Struct, frozen=True, kw_only=True):
    """One row of the table; 0 where no limit is known.

    Attributes:
        image_bytes: the base64 text of one image.
        side: the longest side of an image, in pixels.
        many: above this many images, no side may be longer than ``many_side``.
        media: images and documents of a request.
        body_bytes: the whole request.
        types: the media types of images.
        source: where the provider states this.
    """

    image_bytes: int = 0
    side: int = 0
    many: int = 0
    many_side: int = 0
    media: int = 0
    body_bytes: int = 0
    types: frozenset[str] = frozenset()
    source: str = ""


_MIB: Final = 1024 * 1024
_FOUR: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})

CLAUDE: Final = MediaLimits(
    image_bytes=5 * _MIB,
    side=8000,
    many=20,
    many_side=2000,
    media=100,
    body_bytes=32 * _MIB,
    types=_FOUR,
    source="platform.claude.com, Vision; anthropics/claude-code#2939, #3397, #49836",
)
# Models whose context window is longer than 200,000 tokens. 4.6 has it on demand, so the smaller number holds for it.
CLAUDE_LONG: Final = structs.replace(CLAUDE, media=600)
CONVERSE: Final = MediaLimits(
    image_bytes=5 * _MIB,
    side=8000,
    many=20,
    many_side=2000,
    media=20,
    body_bytes=20 * _MIB,
    types=_FOUR,
    source="docs.aws.amazon.com, Converse; boto/boto3#4632; cline/cline#1844",
)
# Sonnet 5 took 29 images and refused 28 MB (accelerated-intelligent-document-processing-on-aws#994).
CONVERSE_CLAUDE_5: Final = structs.replace(CONVERSE, media=100)
GEMINI: Final = MediaLimits(
    image_bytes=20 * _MIB,
    body_bytes=20 * _MIB,
    media=3000,
    types=frozenset({"image/jpeg", "image/png", "image/webp", "image/heic", "image/heif"}),
    source="ai.google.dev and docs.cloud.google.com, Image understanding",
)
OPENAI: Final = MediaLimits(
    body_bytes=50 * _MIB, media=500, types=_FOUR, source="platform.openai.com, Images and vision: requirements"
)
NO_LIMITS: Final = MediaLimits()

_CLAUDE_VERSION: Final = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
_LONG_SINCE: Final = (4, 7)


def limits_of(target: str, model: str | None) -> MediaLimits:
    """Return the limits of a target for a model; those of the smallest of its models if the model is unknown."""
    match target:
        case "anthropic":
            return CLAUDE_LONG if _claude(model) >= _LONG_SINCE else CLAUDE
        case "bedrock-converse":
            return CONVERSE_CLAUDE_5 if _claude(model) >= (5, 0) else CONVERSE
        case "gemini":
            return GEMINI
        case "openai-chat" | "openai-responses":
            return OPENAI
        case _:
            return NO_LIMITS


def _claude(model: str | None) -> tuple[int, int]:
    found = _CLAUDE_VERSION.search((model or "").lower())
    return (int(found[1]), int(found[2] or 0)) if found else (0, 0)
