"""A laboratory for recorded provider streams: fed whole, cut, redelivered, broken off and retried.

A test module gives each recording as its events' bytes and what must be on the screen at the end; what is run with it
here is the same for every provider.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import msgspec
import pytest
import stream_runs
from recorded import rows
from stream_runs import encoded, items_of, only, picture, without_deltas

from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import ItemCompleted, ItemDelta, ItemRetracted, ItemStarted, TurnStop
from reknit.topics.reducer import View, reduce

# This many places of long streams are tried, evenly spread.
MOST_PLACES = 40

# A block on the screen: its type, and its text; a call's type, name, id and input; else its type and its JSON.
Shown = tuple[Any, ...]


class Recording(NamedTuple):
    """A recorded stream: ``events`` are the bytes of each event, ``shown`` what must be on the screen at the end."""

    id: str
    source: str
    events: list[bytes]
    shown: list[Shown]


def streams(name):
    return [row for row in rows(name) if row.get("stream")]


def sse(payload, name=""):
    return (f"event: {name}\n" if name else "").encode() + f"data: {payload}\n\n".encode()


def frame(name, payload, kind="event"):
    headers = {":message-type": kind, f":{kind}-type": name, ":content-type": "application/json"}
    return stream_runs.frame(stream_runs.string_headers(headers), payload)


def shown(entry):
    """An item as it is compared with an oracle."""
    kind, started = entry.item_type, entry.started
    if kind in {"text", "thinking"}:
        return kind, entry.text
    if kind.endswith("tool_use"):
        name = f"{started.tool_source}__{started.tool_server}__{started.name}" if started.tool_source else started.name
        given = entry.text if entry.input is None else bytes(entry.input)
        return kind, name, entry.item_id, given if entry.incomplete else json.loads(given or "{}")
    return kind, msgspec.json.decode(started.raw) if isinstance(started.raw, msgspec.Raw) else None


def screen(items):
    return [shown(entry) for entry in reduce(items).entries]


def compared(items):
    """The screen without what blocks of other types hold, which no oracle of a screen has."""
    told = {"text", "thinking"}
    return [block if block[0] in told or len(block) > 2 else (block[0], None) for block in screen(items)]


def fed(source, records, **options):
    return items_of(source, *records, **options)


def places(length):
    """Places to try in a list of this length: all of them, or as many as is bearable."""
    step = max(1, -(-length // MOST_PLACES))
    return list(range(0, length, step))


# -- the checks of every recording --------------------------------------------------------------------------------


def check_whole(recording):
    """Fed in one call, the items reduce to the oracle's content, everything is complete and reported once."""
    items = fed(recording.source, [b"\n".join(recording.events)])
    assert compared(items) == recording.shown
    view = reduce(items)
    assert [entry.item_id for entry in view.entries if entry.incomplete or not entry.done] == []
    assert (view.retracted, view.notices, view.unrecognized) == (set(), {}, {})
    stops = only(items, TurnStop)
    assert len(stops) == 1
    assert not stops[0].incomplete


def check_cuts(recording):
    """Cut at every event, or anywhere in its bytes, the items are the same, except for where deltas are cut."""
    data = b"".join(recording.events)
    whole = fed(recording.source, [data])
    cut = [fed(recording.source, recording.events)]
    for size in (1, 7, 61) if len(data) < 20_000 else (61,):
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        cut.append(fed(recording.source, pieces, framing="bytes"))
    for items in cut:
        assert without_deltas(items) == without_deltas(whole)
        assert picture(items) == picture(whole)


def check_redelivery(recording):
    """Each record once more, to the state before it: the same items, and applied twice they change nothing."""
    recovery = Recovery(recording.source)
    items = []
    doubled = []
    for record in recording.events:
        before = recovery.snapshot()
        first = recovery.feed(record)
        recovery = Recovery.restore(before)
        again = recovery.feed(record)
        assert encoded(again) == encoded(first)
        items += first
        doubled += [*first, *again]
    last = recovery.end_run("exit")
    assert picture([*doubled, *last, *last]) == picture([*items, *last])
    assert screen([*items, *last]) == screen(fed(recording.source, recording.events))


def check_disconnects(recording):
    """Cut after any event: the received content is present, and unfinished content is marked, with the reason."""
    tried = set(places(len(recording.events)))
    recovery = Recovery(recording.source)
    view = View()
    for number, record in enumerate(recording.events):
        for item in recovery.feed(record):
            view.apply(item)
        if number not in tried:
            continue
        came = {entry.item_id: (entry.text, entry.done and not entry.incomplete) for entry in view.entries}
        cut = View()
        for item in (*_as_items(view), *Recovery.restore(recovery.snapshot()).end_run("connection lost")):
            cut.apply(item)
        for entry in cut.entries:
            text, done = came.get(entry.item_id, ("", False))
            assert entry.text.startswith(text)
            assert entry.done
            assert entry.incomplete == (not done)
            assert entry.reason == ("" if done else "connection lost")
        assert came.keys() <= {entry.item_id for entry in cut.entries}


def _as_items(view):
    """Items that give this view."""
    for entry in view.entries:
        yield entry.started
        if entry.text and not entry.started.text:
            yield ItemDelta(item_id=entry.item_id, delta_type="text_delta", content=entry.text)
        if entry.done:
            yield ItemCompleted(item_id=entry.item_id, incomplete=entry.incomplete, reason=entry.reason)


def check_retry(recording):
    """Broken off after any event and asked for again in the same run: the whole once, the rest withdrawn by name.

    Once its stop reason has come, a message is whole, and what starts then is the next one.
    """
    clean = _texts(screen(fed(recording.source, recording.events)))
    for place in places(len(recording.events)):
        first = Recovery(recording.source)
        began = [item for record in recording.events[:place] for item in first.feed(record)]
        finished = any(isinstance(item, ItemCompleted) for item in began)
        again = [item for record in recording.events for item in first.feed(record)]
        items = [*began, *again, *first.end_run("exit")]
        assert _texts(screen(items)) == (clean + clean if finished else clean)
        withdrawn = [item.item_id for item in items if isinstance(item, ItemRetracted)]
        assert withdrawn == [item.item_id for item in began if isinstance(item, ItemStarted) and not finished]


def _texts(blocks):
    """Blocks without the ids of calls: a call that is made again gets a new one."""
    return [(*block[:2], *block[3:]) for block in blocks]


# The checks of every recording, for every provider.
CHECKS = (check_cuts, check_redelivery, check_disconnects, check_retry)
each_check = pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
