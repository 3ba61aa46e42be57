"""Checks of media: decoding, downloads, sides, bytes, and counts."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from typing import Any

from mock_provider.received import Received, listed, members
from mock_provider.sentences import RefusedError
from mock_provider.values import digest_of
from msgspec import Struct

_PNG = b"\x89PNG\r\n\x1a\n"
_HEADER = 24


class Picture(Struct, frozen=True):
    """A picture: the path of its source in the provider's notation, its base64 text, and its URL."""

    path: str
    data: str
    url: str

    @property
    def side(self) -> int:
        """Return the longer side in pixels, or 0 where it cannot be read."""
        head = base64.b64decode(self.data[: _HEADER * 2])
        return max(struct.unpack(">II", head[16:_HEADER])) if head.startswith(_PNG) else 0


def check_media(request: Received) -> None:
    """Refuse the first picture that the provider cannot take, then too many of them."""
    pictures = list(pictures_of(request))
    facts, shape = request.facts, request.party.shape
    if pictures and not facts.vision and shape == "chat":
        raise RefusedError("no_vision", n=indexes(pictures[0].path)[0], column=391)
    if shape in ("messages", "converse"):
        _check_sides(request, pictures)
    for picture in pictures:
        _check_one(request, picture)
    if len(pictures) > facts.images_max:
        name = "vllm_count" if shape == "chat" else "media_count"
        raise RefusedError(name, images=len(pictures), most=facts.images_max)


def _check_sides(request: Received, pictures: list[Picture]) -> None:
    facts = request.facts
    for picture in pictures:
        if not picture.data:
            continue
        if len(picture.data) > facts.image_bytes:
            raise RefusedError("image_bytes", at=picture.path, bytes=len(picture.data))
        if picture.side > facts.image_side:
            raise RefusedError("image_side", at=picture.path)
        if len(pictures) > facts.many_images and picture.side > facts.many_side:
            raise RefusedError("many_side", at=picture.path)


def _check_one(request: Received, picture: Picture) -> None:
    shape, state = request.party.shape, request.state
    if picture.data and digest_of(picture.data) in state.undecodable:
        name = {"gemini": "undecodable_gemini", "chat": "undecodable_chat"}.get(shape, "undecodable")
        raise RefusedError(name, digest_of(picture.data))
    if picture.url in state.gone:
        name = {"gemini": "download_gemini", "messages": "download", "converse": "download"}.get(
            shape, "download_named"
        )
        raise RefusedError(name, picture.url, url=picture.url)
    if state.timeouts.get(picture.url, 0) > 0:
        state.timeouts[picture.url] -= 1
        raise RefusedError("download_timeout", picture.url, url=picture.url)


def check_strings(request: Received) -> None:
    """Refuse lists as the content of tool messages."""
    if request.facts.string_tool_content:
        for message in listed(request.body.get("messages")):
            if message.get("role") == "tool" and isinstance(message.get("content"), list):
                raise RefusedError("string_content")


def pictures_of(request: Received) -> Iterator[Picture]:
    """Yield the pictures of a request in their order."""
    name = {"responses": "input", "gemini": "contents"}.get(request.party.shape, "messages")
    for at, turn in enumerate(listed(request.body.get(name))):
        for key in ("parts",) if request.party.shape == "gemini" else ("content", "output"):
            yield from _in_list(listed(members(turn).get(key)), f"{name}.{at}.{key}")


def _in_list(parts: list[Any], path: str) -> Iterator[Picture]:
    for at, part in enumerate(map(members, parts)):
        place = f"{path}.{at}"
        if part.get("type") == "tool_result":
            yield from _in_list(listed(part.get("content")), f"{place}.tool_result.content")
        elif "toolResult" in part:
            yield from _in_list(listed(part["toolResult"].get("content")), f"{place}.tool_result.content")
        elif (found := _picture(part, place)) is not None:
            yield found


def _picture(part: dict[str, Any], place: str) -> Picture | None:
    if part.get("type") == "image":
        source = part["source"]
        return Picture(f"{place}.image.source.{source['type']}", source.get("data", ""), source.get("url", ""))
    if "image" in part:
        return Picture(f"{place}.image.source.base64", part["image"]["source"]["bytes"], "")
    if "inlineData" in part:
        return Picture(place, part["inlineData"]["data"], "")
    if "fileData" in part:
        return Picture(place, "", part["fileData"]["fileUri"])
    if part.get("type") in ("image_url", "input_image") and part.get("image_url") is not None:
        given = part["image_url"]
        url = given["url"] if isinstance(given, dict) else given
        return Picture(place, url.partition(",")[2], "") if url.startswith("data:") else Picture(place, "", url)
    return None


def indexes(path: str) -> list[int]:
    return [int(step) for step in path.split(".") if step.isdecimal()]
