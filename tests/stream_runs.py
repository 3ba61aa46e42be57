"""Helpers that feed streams and read the results: records go in; items, a screen and the turns of the log come out."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from reknit.pipeline.streams.recovery import Machine
from reknit.pipeline.streams.recovery.memory import Context, Ids, Memory
from reknit.pipeline.streams.recovery.render import FinishedTurn
from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import (
    AgentError,
    Item,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemRetracted,
    ItemStarted,
    TurnStop,
)
from reknit.topics.reducer import Entry, View, reduce


class Run(NamedTuple):
    items: list[Item]
    turns: list[FinishedTurn]

    @property
    def view(self) -> View:
        return reduce(self.items)

    @property
    def contents(self) -> list[list[dict[str, Any]]]:
        return [json.loads(turn.message)["content"] for turn in self.turns]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        return [block for content in self.contents for block in content]


def records(*parts):
    """Encode events as records, flattening nested lists; bytes are records already."""
    for part in parts:
        if isinstance(part, list | tuple):
            yield from records(*part)
        else:
            yield part if isinstance(part, bytes) else json.dumps(part).encode()


def run(source, *parts, sizes=None, end="exit", **options):
    """Return the results of one run of a source.

    With ``sizes``, a record combines that many of the given ones, a last record has the rest, and the state is saved
    and restored after each. ``options`` are those of ``feed``.
    """
    recovery, items, turns = Recovery(source), [], []
    rest = list(records(*parts))
    batches = [[record] for record in rest]
    if sizes is not None:
        batches = []
        for size in [*sizes, len(rest)]:
            batches.append(rest[:size])
            rest = rest[size:]
    for batch in batches:
        items += recovery.feed(b"\n".join(batch), **options)
        turns += recovery.take_finished()
        if sizes is not None:
            recovery = Recovery.restore(recovery.snapshot())
    items += recovery.end_run(end)
    return Run(items, turns + recovery.take_finished())


def stepped(*events, **options):
    """Return the items for common events, as in an API's stream, and the machine that processed them."""
    context = Context(memory=Memory(Ids("x")), complete_messages=False, records=True, **options)
    machine = Machine(context)
    return [item for event in events for item in machine.apply(event)], machine


def items_of(source, *parts, **options):
    return run(source, *parts, **options).items


def only(items, *kinds):
    return [item for item in items if isinstance(item, kinds)]


def entries(items) -> list[Entry]:
    return reduce(items).entries


def texts(items):
    return [entry.text for entry in entries(items)]


def marked(items):
    """Return the final texts, each with a flag that says if it is incomplete."""
    return [(entry.text, entry.incomplete) for entry in entries(items)]


def shown(items):
    """Return the types and texts of the final items."""
    return [(entry.item_type, entry.text) for entry in entries(items)]


def stop_reasons(items):
    return [item.stop_reason for item in only(items, TurnStop)]


def errors(items):
    """Return the messages and codes of the errors."""
    return [(item.message, item.code) for item in only(items, AgentError)]


def extras(items):
    found = [item.extras for item in only(items, ItemCompleted) if isinstance(item.extras, dict)]
    return [{name: json.loads(bytes(raw)) for name, raw in one.items()} for one in found]


def encoded(items):
    return [msgspec.json.encode(item) for item in items]


def without_deltas(items):
    """Return items as records, except those whose number depends on how events were batched."""
    return encoded(item for item in items if not isinstance(item, ItemDelta))


def check_well_formed(items):
    """Assert that an id begins once and is silent after a retraction, deltas are consecutive, and every item ends."""
    lengths, withdrawn = {}, set()
    for item in items:
        item_id = getattr(item, "item_id", None)
        if item_id is None or isinstance(item, ItemResult):
            continue
        assert item_id not in withdrawn
        assert isinstance(item, ItemStarted) == (item_id not in lengths)
        if isinstance(item, ItemStarted):
            lengths[item_id] = len(item.text)
        if isinstance(item, ItemDelta):
            assert item.at == lengths[item_id]
            lengths[item_id] += len(item.content)
        if isinstance(item, ItemRetracted):
            withdrawn.add(item_id)
    assert all(entry.done for entry in reduce(items).entries)


def frame(head, payload):
    """A message of AWS's event stream with these headers."""
    prelude = (16 + len(head) + len(payload)).to_bytes(4, "big") + len(head).to_bytes(4, "big")
    message = prelude + crc32(prelude).to_bytes(4, "big") + head + payload
    return message + crc32(message).to_bytes(4, "big")


def string_headers(headers):
    return b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2, "big") + value.encode()
        for name, value in headers.items()
    )


def picture(items):
    view = reduce(items)
    parts = (view.notices, view.results, view.diagnoses, view.unrecognized)
    return msgspec.json.encode([view.entries, sorted(view.retracted), *map(list, parts)])
