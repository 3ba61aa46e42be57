"""Repairs of requests to Converse: its models differ in what they take."""

from __future__ import annotations

from typing import Any

from reknit.pipeline.healing.body import RefusedBody, items_in, members_of
from reknit.pipeline.healing.errors import Refusal


def drop_cache_points(body: RefusedBody, words: dict[str, str], _refusal: Refusal) -> None:
    """Leave out the cache points of the member that the sentence names, or all of them.

    A model may take them in the prompt and in messages, and none among its tools.
    """
    place = words.get("place", "")
    if place in {"", "system"}:
        _drop_from(body, body.value, "system", "")
    if place in {"", "toolConfig/tools"}:
        _drop_from(body, members_of(body.value.get("toolConfig")), "tools", "toolConfig.")
    if place in {"", "messages"}:
        for at, turn in enumerate(body.turns):
            _drop_from(body, turn, "content", f"messages.{at}.")


def _drop_from(body: RefusedBody, holder: dict[str, Any], name: str, path: str) -> None:
    """Leave the cache points of a list out, unless it would be empty."""
    items = items_in(holder.get(name))
    kept = [item for item in items if not _is_point(item)]
    if not kept or len(kept) == len(items):
        return
    for at, item in enumerate(items):
        if _is_point(item):
            body.note(body.place_of(item, f"{path}{name}.{at}"), "left out")
    holder[name] = kept


def _is_point(item: object) -> bool:
    return members_of(item).keys() == {"cachePoint"}
