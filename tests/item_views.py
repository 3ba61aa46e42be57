"""Items of sessions in a form in which they can be compared, however they were joined from batch to batch."""

from __future__ import annotations

import msgspec

from reknit.topics.items import AnyItem, ItemDelta
from reknit.topics.reducer import reduce

_decode = msgspec.json.Decoder(AnyItem).decode


def by_session(records):
    """Return the items of each session, from records or outputs."""
    sessions = {}
    for record in records:
        sessions.setdefault(record.key, []).append(_decode(record.value))
    return sessions


def view_of(items):
    """Return what a screen shows."""
    view = reduce(items)
    return msgspec.json.encode([view.entries, sorted(view.retracted), view.notices, view.results, view.unrecognized])


def whole_items(items):
    """Return the items that are never joined."""
    return [msgspec.json.encode(item) for item in items if not isinstance(item, ItemDelta)]
