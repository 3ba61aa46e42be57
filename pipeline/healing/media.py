"""Repairs of media: the named one, those since the last answer, the oldest, or all become a line of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from reknit.pipeline.healing.body import (
    CHAT,
    GEMINI,
    RESPONSES,
    JsonObject,
    Known,
    RefusedBody,
    Revoked,
    digest_of,
    indexes_of,
    items_in,
    members_of,
    text_in,
)
from reknit.pipeline.healing.errors import Refusal
from reknit.pipeline.targets.media import inspect

Words = dict[str, str]
_MEDIA_TYPES: Final = frozenset(
    {"image", "document", "image_url", "input_audio", "file", "input_image", "input_file", "video_url"}
)
_CONVERSE: Final = ("image", "document", "video")
_GEMINI: Final = ("inlineData", "inline_data", "fileData", "file_data")
# Base64 text of media that may stay of a body that is too large: well below every provider's limit.
_ROOM: Final = 16 * 1024 * 1024


class Medium(Struct, frozen=True):
    """A medium: the list that holds it, its place there, the index of its turn, and its path."""

    holder: list[Any]
    at: int
    turn: int
    path: str

    @property
    def part(self) -> JsonObject:
        return members_of(self.holder[self.at])

    @property
    def address(self) -> str:
        """The URL, the file's id or its name, where the medium lies elsewhere; else ""."""
        for value in _values(self.part):
            for name in ("url", "file_id", "fileUri", "file_uri", "image_url", "file_url"):
                found = text_in(value.get(name))
                if found and not found.startswith("data:"):
                    return found
        return ""

    @property
    def size(self) -> int:
        return sum(len(text) for value in _values(self.part) for text in value.values() if isinstance(text, str))


def media_in(body: RefusedBody) -> list[Medium]:
    """Return the media of a body, the oldest first; those of results too."""
    found: list[Medium] = []
    for turn, each in enumerate(body.turns):
        for name in ("parts",) if body.target in GEMINI else ("content", "output"):
            found += _in_list(body, items_in(each.get(name)), turn, f"{body.turns_name}.{turn}.{name}")
    return found


def _in_list(body: RefusedBody, holder: list[Any], turn: int, path: str) -> Iterator[Medium]:
    for at, part in enumerate(holder):
        place = f"{path}.{at}"
        members = members_of(part)
        if _is_medium(body.target, members):
            yield Medium(holder, at, turn, place)
        elif members.get("type") == "tool_result":
            yield from _in_list(body, items_in(members.get("content")), turn, f"{place}.content")
        elif "toolResult" in members:
            inner = members_of(members["toolResult"])
            yield from _in_list(body, items_in(inner.get("content")), turn, f"{place}.toolResult.content")


def _is_medium(target: str, part: JsonObject) -> bool:
    if target in GEMINI:
        return any(name in part for name in _GEMINI)
    if target == "bedrock-converse":
        return any(name in part for name in _CONVERSE)
    return part.get("type") in _MEDIA_TYPES


def _values(value: object) -> Iterator[JsonObject]:
    """Yield an object and the objects within it."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _values(each)


def stub(body: RefusedBody, media: Iterable[Medium], why: str, *, is_addressed: bool = False) -> None:
    """Replace media by a line of text that says why; ``is_addressed``: and names their address."""
    for medium in media:
        where = f" ({medium.address})" if is_addressed else ""
        _put(body, medium, f"[Image or file left out: {why}{where}]", why)


def _put(body: RefusedBody, medium: Medium, text: str, why: str) -> None:
    given = medium.part
    if body.target in RESPONSES:
        part: JsonObject = {"type": "input_text", "text": text}
    elif body.target in GEMINI or body.target == "bedrock-converse":
        part = {"text": text}
    else:
        part = {"type": "text", "text": text}
    if "cache_control" in given:
        part["cache_control"] = given["cache_control"]
    medium.holder[medium.at] = part
    body.note(body.place_of(given, medium.path), why, Revoked("medium", _medium_digest(given), text))


def _medium_digest(part: JsonObject) -> bytes:
    return digest_of({name: value for name, value in part.items() if name != "cache_control"})


def drop_revoked(body: RefusedBody, known: Known) -> None:
    """Replace the media that were revoked by the same lines of text as before."""
    for medium in media_in(body):
        put = known.get(("medium", _medium_digest(medium.part)))
        if put is not None:
            _put(body, medium, put, "it was refused")


def stub_every(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Replace all media: it is not known which one the provider refuses."""
    stub(body, media_in(body), _REFUSED)


_REFUSED: Final = "the provider cannot process it"


def stub_named(body: RefusedBody, words: Words, refusal: Refusal) -> None:
    """Replace the medium at the named place, and those that are the same or beyond the limit that the sentence states.

    Without a place, replace those that no answer has followed yet, or all.
    """
    wanted = indexes_of(words.get("path") or "")
    if not wanted:
        stub_since_answer(body, words, refusal)
        return
    media = media_in(body)
    named = {_medium_digest(medium.part) for medium in media if _is_at(medium, wanted)}
    if named:
        stub(body, [each for each in media if _medium_digest(each.part) in named or _is_beyond(each, words)], _REFUSED)


def _is_beyond(medium: Medium, words: Words) -> bool:
    """Return True if an image has more pixels on a side, or more bytes of base64, than the provider says it takes."""
    side, size = int(words.get("side") or 0), int(words.get("bytes") or 0)
    source = next((each for each in _values(medium.part) if "data" in each or "bytes" in each), {})
    data = text_in(source.get("data") or source.get("bytes"))
    facts = inspect(Raw(msgspec.json.encode({"type": "base64", "data": data}))) if data else None
    return facts is not None and (0 < side < facts.longest_side or 0 < size < facts.encoded_bytes)


def _is_at(medium: Medium, wanted: list[int]) -> bool:
    """Return True if a place is that of a medium; the names between indexes are those of unions and fields."""
    numbers = indexes_of(medium.path)
    return wanted[: len(numbers)] == numbers


def stub_since_answer(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Replace the media after the last answer: a request with the others was accepted. Without such media, all."""
    every = media_in(body)
    begin = _begin_of_turn(body)
    stub(body, [medium for medium in every if medium.turn >= begin] or every, _REFUSED)


def stub_new_only(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Replace the media after the last answer; for a sentence that says nothing, so never all."""
    begin = _begin_of_turn(body)
    stub(body, [medium for medium in media_in(body) if medium.turn >= begin], _REFUSED)


def _begin_of_turn(body: RefusedBody) -> int:
    return body.last_answer() + 1


def stub_address(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Replace the medium with the named address, name or host, or all that lie elsewhere if none is named."""
    name = words.get("name") or ""
    remote = [medium for medium in media_in(body) if medium.address]
    named = [medium for medium in remote if name and _is_named(medium.address, name)]
    if body.target in GEMINI and not name:
        remote = [medium for medium in remote if "/files/" not in medium.address and "gs://" not in medium.address]
    is_download = "://" in name or not name
    why = "it cannot be downloaded" if is_download else "the provider does not have the file any more"
    stub(body, named if name else remote, why, is_addressed=is_download)


def _is_named(address: str, name: str) -> bool:
    return address == name or address.endswith(f"/{name}") or f"://{name}/" in address


def stub_oldest(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Replace as many of the oldest media as are too many by the sentence."""
    media = media_in(body)
    count = int(words.get("documents") or 0) + int(words["images"]) - int(words["most"])
    stub(body, media[: max(count, 0)], "the request has too many")


def keep_newest(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Keep as many of the newest media as the sentence allows."""
    media = media_in(body)
    stub(body, media[: max(len(media) - int(words["most"]), 0)], "the request has too many")


def stub_until_small(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Replace the oldest media until few bytes of media are left; at least one."""
    media = media_in(body)
    left = sum(medium.size for medium in media)
    for count, medium in enumerate(media):
        if count and left <= _ROOM:
            return
        left -= medium.size
        stub(body, [medium], "the request is too large")


def stub_all(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Replace all media: the model takes none."""
    stub(body, media_in(body), "the model takes none")


def join_tool_texts(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Write the contents of tool messages as strings, and their media in a user message after the results."""
    if body.target not in CHAT:
        return
    written: list[JsonObject] = []
    media: list[Any] = []
    for at, turn in enumerate(body.turns):
        parts = turn.get("content")
        if turn.get("role") != "tool" and media:
            written.append({"role": "user", "content": media})
            media = []
        if turn.get("role") == "tool" and isinstance(parts, list):
            texts = [text_in(members_of(part).get("text")) for part in parts]
            media = [*media, *(part for part in parts if _is_medium(body.target, members_of(part)))]
            turn["content"] = "\n".join(filter(None, texts))
            body.note(f"messages.{at}.content", "joined")
        written.append(turn)
    body.value["messages"] = [*written, {"role": "user", "content": media}] if media else written
