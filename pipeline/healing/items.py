"""Repairs of items in Responses requests: encrypted reasoning, ids of what was not stored, and containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from reknit.pipeline.healing.body import (
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
from reknit.pipeline.targets.signatures import form_of

Words = dict[str, str]
_EXCERPT: Final = 4


def drop_by_excerpt(body: RefusedBody, words: Words, refusal: Refusal) -> None:
    """Drop the reasoning whose encrypted content begins and ends as quoted, and the rest of its form if it is foreign.

    If no item has such content, it is in what the provider stored: then all reasoning and all ids go.
    """
    head, tail = words["head"], words["tail"]

    def is_quoted(item: JsonObject) -> bool:
        content = text_in(item.get("encrypted_content"))
        return content.startswith(head) and content.endswith(tail)

    named = [item for item in body.turns if is_quoted(item)]
    if not named:
        drop_all(body, words, refusal)
        return
    form = form_of(text_in(named[0].get("encrypted_content")))
    foreign = head[:_EXCERPT] if form is None and not head.startswith("gAAA") else ""
    _drop(body, lambda item: is_quoted(item) or _is_foreign(item, form, foreign))


def _is_foreign(item: JsonObject, form: object, head: str) -> bool:
    content = text_in(item.get("encrypted_content"))
    if item.get("type") != "reasoning" or not content:
        return False
    if head:
        return content.startswith(head)
    found = form_of(content)
    return found is not None and found is form and "openai" not in found.issuers


def drop_by_id(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Drop the reasoning with the named id."""
    _drop(body, lambda item: item.get("id") == words["id"] and item.get("type") == "reasoning")


def drop_all(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Drop all reasoning, and the ids of all items."""
    _drop(body, lambda item: item.get("type") == "reasoning")
    _drop_ids(body, lambda _item: True)


def drop_unstored(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Drop the ids of all items, and what is nothing without its id."""
    _drop(
        body,
        lambda item: (
            item.get("type") == "item_reference"
            or (item.get("type") == "reasoning" and not item.get("encrypted_content"))
        ),
    )
    _drop_ids(body, lambda _item: True)


def drop_connection_ids(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Drop the ids of all items, and reasoning that is sealed to such an id."""
    _drop(body, lambda item: item.get("type") == "reasoning" and "id" in item)
    _drop_ids(body, lambda _item: True)


def drop_id(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Leave out one id, by itself or by its place."""
    place = indexes_of(words.get("path") or "")
    _drop_ids(body, lambda item: item.get("id") == words.get("id") or (place != [] and item is _at(body, place[0])))


def drop_repeated(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Drop an item that is there twice; of two different ones with the same id, the id of the second."""
    first: JsonObject | None = None
    for item in body.turns:
        if item.get("id") != words["id"]:
            continue
        if first is None:
            first = item
        elif item == first:
            _drop(body, lambda each, repeated=item: each is repeated)  # type: ignore[misc]  # bound in this round
        else:
            _drop_ids(body, lambda each, repeated=item: each is repeated)  # type: ignore[misc]  # as above


def drop_container(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Drop what ran in a container that expired, and let the provider start another one."""
    name = words.get("name") or ""
    _drop(
        body,
        lambda item: item.get("type") == "code_interpreter_call" and (not name or item.get("container_id") == name),
    )
    _renew_containers(body, lambda _name: True)


def _renew_containers(body: RefusedBody, is_gone: Callable[[str], bool]) -> None:
    for at, tool in enumerate(map(members_of, items_in(body.value.get("tools")))):
        name = tool.get("container")
        if isinstance(name, str) and is_gone(name):
            tool["container"] = {"type": "auto"}
            body.note(f"tools.{at}.container", "a new one", Revoked("container", digest_of(name)))


def drop_compaction(body: RefusedBody, words: Words, _refusal: Refusal) -> None:
    """Drop the compactions that the provider cannot read; the turns before them are in the request."""
    name = words.get("id") or ""
    _drop(
        body,
        lambda item: (
            text_in(item.get("type")).startswith("compaction") and (not name or item.get("id") in (name, None))
        ),
    )


def drop_chain(body: RefusedBody, _words: Words, _refusal: Refusal) -> None:
    """Send the whole history in place of a stored response."""
    if body.value.pop("previous_response_id", None) is not None:
        body.note("previous_response_id", "left out")


def drop_revoked(body: RefusedBody, known: Known) -> None:
    """Drop what was revoked: items, ids and containers."""
    _drop(body, lambda item: _item_key(item) in known)
    _drop_ids(body, lambda item: ("id", digest_of(item["id"])) in known)
    _renew_containers(body, lambda name: ("container", digest_of(name)) in known)


def _item_key(item: JsonObject) -> tuple[str, bytes]:
    """Return the kind and the digest by which a dropped item is found again."""
    kind = "reasoning" if item.get("type") == "reasoning" else "item"
    return kind, digest_of(item.get("encrypted_content") or item.get("id") or item)


def _at(body: RefusedBody, place: int) -> JsonObject | None:
    return body.turns[place] if 0 <= place < len(body.turns) else None


def _drop(body: RefusedBody, is_dropped: Callable[[JsonObject], bool]) -> None:
    """Drop items, and the ids of those that the dropped reasoning led to, up to the user's next."""
    items = items_in(body.value.get("input"))
    kept: list[object] = []
    follows = False
    for at, each in enumerate(items):
        item = members_of(each)
        if item and is_dropped(item):
            body.note(body.place_of(item, f"input.{at}"), "left out", Revoked(*_item_key(item)))
            follows = follows or item.get("type") == "reasoning"
            continue
        if item.get("role") == "user":
            follows = False
        elif follows and "id" in item and item.get("type") != "reasoning":
            _remove_id(body, at, item)
        kept.append(each)
    body.value["input"] = kept


def _drop_ids(body: RefusedBody, is_dropped: Callable[[JsonObject], bool]) -> None:
    for at, item in enumerate(body.turns):
        if "id" in item and is_dropped(item):
            _remove_id(body, at, item)


def _remove_id(body: RefusedBody, at: int, item: JsonObject) -> None:
    revoked = Revoked("id", digest_of(item.pop("id")))
    body.note(f"{body.place_of(item, f'input.{at}')}.id", "left out", revoked)
