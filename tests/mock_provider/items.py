"""Checks of the items of a Responses request: ids, what follows reasoning, and encrypted content."""

from __future__ import annotations

from typing import Any

from mock_provider.received import Received, listed, members
from mock_provider.sentences import RefusedError

_EXCERPT = 4


def check_items(request: Received) -> None:
    """Refuse the first item that this caller cannot use."""
    items = [members(item) for item in listed(request.body.get("input"))]
    seen: set[str] = set()
    for at, item in enumerate(items):
        item_id = item.get("id")
        if item_id is not None:
            if item_id in seen:
                raise RefusedError("duplicate", id=item_id)
            seen.add(item_id)
            _check_id(request, item, item_id)
            _check_neighbours(request, items, at, item_id)
        if item.get("encrypted_content") is not None:
            _check_content(request, item)


def _check_id(request: Received, item: dict[str, Any], item_id: str) -> None:
    known = request.state.items.get(item_id)
    if request.party.per_connection and known is not None and known.connection != request.connection:
        raise RefusedError("connection", item_id)
    has_content = item.get("type") not in ("reasoning", "item_reference") or bool(item.get("encrypted_content"))
    is_stored = known is not None and known.stored and known.boundary == request.boundary
    if known is None or (not is_stored and not has_content):
        raise RefusedError("item_unknown", item_id, id=item_id)


def _check_neighbours(request: Received, items: list[dict[str, Any]], at: int, item_id: str) -> None:
    item = items[at]
    if item.get("type") == "reasoning":
        following = items[at + 1] if at + 1 < len(items) else {"role": "user"}
        if following.get("role") == "user" or following.get("type") == "function_call_output":
            raise RefusedError("no_follower", item_id, id=item_id)
        return
    known = request.state.items.get(item_id)
    if known is None or not known.stored or not known.follows:
        return
    if known.follows not in {each.get("id") for each in items[:at]}:
        raise RefusedError("no_reasoning", item_id, id=item_id, type=item.get("type"), reasoning=known.follows)


def _check_content(request: Received, item: dict[str, Any]) -> None:
    value = item["encrypted_content"]
    kind = "compaction" if item.get("type") == "compaction" else "encrypted"
    found = request.state.issued.get((request.party.platform, kind, value))
    if found is None or found.boundary != request.boundary:
        if kind == "compaction":
            raise RefusedError("compaction", value)
        if request.wording == "caller":
            raise RefusedError("caller", value)
        if request.wording == "by_item" and item.get("id"):
            raise RefusedError("by_item", value, id=item["id"])
        raise RefusedError("excerpt", value, head=value[:_EXCERPT], tail=value[-_EXCERPT:])
    if item.get("id") is not None and found.item != item["id"]:
        raise RefusedError("item_mismatch", value, id=item["id"])
