"""What the Messages API asks of an image: size, media type, dimensions, as far as the body shows them."""

from __future__ import annotations

from pipeline.rules._media import look
from pipeline.rules.anthropic.catalogue import rule
from pipeline.rules.anthropic.wire import Base64, Document, File, Image
from pipeline.rules.base import Severity, Violation
from pipeline.rules.models import Family, having

IMAGE_BYTES = 5_242_880  # base64 text of one image: the provider counts that, not the bytes it stands for
MANY_IMAGES = 20  # above this many, no side may be longer than
MANY_IMAGES_SIDE = 2000  # pixels
MEDIA_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_IMAGE_TAGS = "'base64', 'url'"
_DOCUMENT_TAGS = "'base64', 'content', 'text', 'url'"

# fmt: off
IMAGE_TOO_BIG = rule(
    "ANT-30", "hard", f"{{at}}: image exceeds 5 MB maximum: {{bytes}} bytes > {IMAGE_BYTES} bytes",
    summary="The base64 text of an image has at most 5 MiB.",
    repair="replace it by a stub", source="anthropics/claude-code#2939, #11181; earendil-works/pi#824",
)
IMAGE_TOO_WIDE = rule(
    "ANT-30b", "hard",
    "{at}: At least one of the image dimensions exceed max allowed size for many-image requests: "
    f"{MANY_IMAGES_SIDE} pixels",
    summary="Among more than 20 images, no side is longer than 2000 pixels.",
    repair="replace the new image by a stub", source="anthropics/claude-code#49836, #3334",
)
IMAGE_BROKEN = rule(
    "ANT-30c", "hard", "Could not process image",
    summary="An image is base64 and complete, as far as its header tells.",
    repair="replace it by a stub", source="anthropics/claude-code#4083",
)
IMAGE_UNKNOWN = rule(
    "ANT-30d", "soft", "Could not process image",
    summary="An image's first bytes are those of a format that we know.",
    repair="replace it by a stub", source="anthropics/claude-code#4083",
)
MEDIA_TYPE = rule(
    "ANT-31", "hard", "{at}: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
    summary="The four media types.",
    repair="sniff the bytes, or replace by a stub", source="the API's own schema",
)
MEDIA_MISMATCH = rule(
    "ANT-31b", "model",
    "{at}: The image was specified using the {declared} media type, but the image appears to be a "
    "{found} image",
    summary="The declared media type is the image's own (Claude 3.5 did not look; recorded).",
    repair="sniff the bytes", source="vybestack/llxprt-code#2130",
    families=having("media_sniffed", value=True),
)
FILE_SOURCE = rule(
    "ANT-31c", "soft",
    "{at}: Input tag 'file' found using 'type' does not match any of the expected tags: {tags}",
    summary="Uploaded files need a beta header, which a body does not show (recorded both ways).",
    repair="send the bytes", source="recorded",
)
# fmt: on


def judge_document(document: Document, path: str, at: str) -> list[Violation]:
    """Say what a document's source breaks; ``path`` is our place, ``at`` the provider's."""
    if isinstance(document.source, File):
        return [FILE_SOURCE.broken(f"{path}.source", at=f"{at}.document.source", tags=_DOCUMENT_TAGS)]
    return []


def judge_image(image: Image, path: str, at: str, family: Family) -> tuple[list[Violation], bool]:
    """Say what an image breaks, and whether it is too wide to stand among many."""
    source = image.source
    if isinstance(source, File):
        soft = FILE_SOURCE.broken(f"{path}.source", at=f"{at}.image.source", tags=_IMAGE_TAGS)
        return [soft], False
    if isinstance(source, Base64):
        return _judge_bytes(source, f"{path}.source", f"{at}.image.source.base64", family)
    return [], False


def _judge_bytes(source: Base64, path: str, at: str, family: Family) -> tuple[list[Violation], bool]:
    found: list[Violation] = []
    data, declared = source.data, source.media_type
    if len(data) > IMAGE_BYTES:
        found.append(IMAGE_TOO_BIG.broken(f"{path}.data", at=at, bytes=len(data)))
    if declared not in MEDIA_TYPES:
        found.append(MEDIA_TYPE.broken(f"{path}.media_type", at=f"{at}.media_type"))
    picture = look(data)
    if picture is None:
        return [*found, IMAGE_BROKEN.broken(f"{path}.data")], False
    if picture.media_type is None:
        return [*found, IMAGE_UNKNOWN.broken(f"{path}.data")], False
    if declared in MEDIA_TYPES and picture.media_type != declared and family.media_sniffed is not False:
        severity: Severity = "model" if family.media_sniffed is None else "hard"
        words = {"at": at, "declared": declared, "found": picture.media_type}
        found.append(MEDIA_MISMATCH.broken(f"{path}.media_type", severity, **words))
    return found, max(picture.width, picture.height) > MANY_IMAGES_SIDE
