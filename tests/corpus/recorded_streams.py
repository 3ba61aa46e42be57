"""Recorded streams of OpenAI's and Gemini's APIs: their input, the final screen, and the checks.

In addition to ``stream_lab``: these streams are many, and most are compared by their texts and calls only, since the
oracles have nothing else.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import stream_runs
from stream_lab import fed, streams
from stream_lab import sse as event_bytes
from stream_runs import items_of, picture

from reknit.pipeline import normalize
from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import AgentError, AgentUnrecognized, ItemCompleted, ItemDelta, ItemRetracted, ItemStarted
from reknit.topics.reducer import reduce

# A plain run tries this many places of a stream; with the variable set, all of them.
PLACES = 10**9 if os.environ.get("REKNIT_ALL_CUTS") else 6


@cache
def recordings(provider):
    return tuple(streams(provider))


def payloads(row):
    return [event if isinstance(event, str) else json.dumps(event) for event in row["stream"]]


def events(row):
    """The events of a stream that are JSON objects, decoded."""
    return [json.loads(payload) for payload in payloads(row) if payload.lstrip()[:1] == "{"]


def parts_in(chunks):
    candidates = [candidate for chunk in chunks for candidate in chunk.get("candidates") or []]
    return [part for candidate in candidates for part in (candidate.get("content") or {}).get("parts") or []]


def thought(item):
    """The words of an item of reasoning."""
    return "\n\n".join(part["text"] for part in [*(item.get("summary") or []), *(item.get("content") or [])])


def sse(row):
    return [event_bytes(payload) for payload in payloads(row)]


def places(count):
    """Where to cut a stream of this many events: everywhere if it is short, else here and there, always the same."""
    if count <= PLACES:
        return list(range(count + 1))
    step = count / PLACES
    return sorted({0, 1, count - 1, count, *(int(step * place) for place in range(PLACES))})


class Screen(NamedTuple):
    """A reader's view of a run: texts joined, calls with their input, and incomplete items."""

    text: str
    calls: list[tuple[str, Any]]
    cut_calls: list[tuple[str, str]]

    def everything(self):
        """Texts and calls, including the input of those that were cut."""
        return self.text, self.calls + [(name, arguments(raw)) for name, raw in self.cut_calls]


def screen(view):
    calls = view.blocks("tool_use")
    return Screen(
        "".join(entry.text for entry in view.blocks("text", "choice")),
        [(entry.started.name, json.loads(raw_input(entry) or "{}")) for entry in calls if not entry.incomplete],
        [(entry.started.name, raw_input(entry)) for entry in calls if entry.incomplete],
    )


def raw_input(entry):
    return entry.text if entry.input is None else bytes(entry.input).decode()


def arguments(text):
    """Arguments as a client reads them: JSON, an empty object, or text where they are neither."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


def shown(source, row):
    return screen(reduce(fed(source, sse(row))))


def cuts(source, row):
    """The view of a run that ends after some of its events, for each place where it may end."""
    recovery = Recovery(source, records=False)
    chosen = set(places(len(row["stream"])))
    items = []
    for count, piece in enumerate([b"", *sse(row)]):
        items += recovery.feed(piece)
        if count in chosen:
            rest = Recovery.restore(recovery.snapshot()).end_run("cut")
            yield count, reduce([*items, *rest])


def check_named(items):
    """Everything that was shown is there at the end, or was withdrawn; and nothing is left open."""
    view = reduce(items)
    started = {item.item_id for item in items if isinstance(item, ItemStarted)}
    retracted = {item.item_id for item in items if isinstance(item, ItemRetracted)}
    assert started - {entry.item_id for entry in view.entries} == retracted
    assert all(entry.done for entry in view.entries)


def incomplete(items):
    return [item for item in items if isinstance(item, ItemCompleted) and item.incomplete]


def errors(items):
    return [item.message for item in items if isinstance(item, AgentError)]


def in_records(pieces, size):
    return [b"".join(pieces[first : first + size]) for first in range(0, len(pieces), size)]


def in_bytes(pieces, size):
    """The same bytes in records that end anywhere."""
    data = b"".join(pieces)
    return [data[first : first + size] for first in range(0, len(data), size)]


def check_cut_in_bytes(source, row):
    """However the bytes are cut, the same is on the screen."""
    whole = picture(fed(source, sse(row)))
    length = len(b"".join(sse(row)))
    for size in (length, 4099, 61, *((1,) if length < 3000 else ())):
        assert picture(fed(source, in_bytes(sse(row), size), framing="bytes")) == whole
    assert picture(fed(source, in_records(sse(row), 7))) == whole


def check_redelivered_by_the_engine(source, row):
    """A record that the engine reads again meets the state from before it, and makes the same items.

    Offsets, state and outputs are in one transaction (or, without transactions, the state holds the last applied
    offset), so an applied record is never applied again. That makes redelivery harmless for sources that do not number
    their events; recovery only has to be a function of state and record.
    """
    recovery = Recovery(source, records=False)
    for record in in_records(sse(row), max(1, len(row["stream"]) // PLACES)):
        before = recovery.snapshot()
        items = recovery.feed(record)
        again = Recovery.restore(before)
        assert again.feed(record) == items
        recovery = again


def next_request(source, row, target):
    """The blocks of the model's turns as they go into the log, and the request that follows: results, or a user's word.

    Calls that were cut have no result.
    """
    turns = stream_runs.run(source, *sse(row)).turns
    messages = [json.loads(turn.message) for turn in turns]
    blocks = [block for message in messages for block in message["content"]]
    calls = [block["id"] for block in blocks if block["type"] == "tool_use" and not block.get("incomplete")]
    results = [{"type": "tool_result", "tool_use_id": call, "content": "done"} for call in calls]
    asked, answered = {"role": "user", "content": "Go."}, {"role": "user", "content": results or "Go on."}
    model = next((turn.model for turn in turns if turn.model), row["model"])
    history = {"messages": [asked, *messages, answered], "model": model}
    return blocks, normalize(history, to=target)


def disturbed(row, other):
    """A stream with lost, repeated, late and early events, and with another stream in the middle.

    It is deterministic for each recording.
    """
    chance = random.Random(row["id"])  # noqa: S311 - nothing is secret here
    found = []
    known = payloads(row)
    for payload in known:
        if chance.random() > 0.1:
            found.append(payload)
        if chance.random() < 0.05:
            found.append(chance.choice(known))
    place = chance.randrange(len(found) + 1)
    return found if chance.random() < 0.5 else [*found[:place], *payloads(other)[:40], *found[place:]]


def check_disturbed(source, raws, said):
    """Whatever comes: each word is in an item, or passed on; and records and restarts change nothing.

    ``said`` gives the words in events.
    """
    pieces = [event_bytes(raw) for raw in raws]
    items = fed(source, pieces)
    told = "".join(item.content for item in items if isinstance(item, ItemDelta) and item.delta_type == "text_delta")
    passed = [json.loads(bytes(item.event)) for item in items if isinstance(item, AgentUnrecognized)]
    came = [json.loads(raw) for raw in raws if raw.lstrip()[:1] == "{"]
    assert Counter(told + said(passed)) == Counter(said(came))
    check_named(items)
    assert picture(items_of(source, in_records(pieces, 3), sizes=[1] * len(pieces))) == picture(items)
