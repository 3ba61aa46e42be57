"""The bundled fleet: what each session's agent and provider sent, in order.

``fleet/histories.jsonl`` are broken histories as clients keep them, one or more for every way in which providers were
seen to refuse one; ``source`` names where. ``fleet/streams.jsonl`` are stream-json lines of real versions of the Claude
CLI whose responses were cut, as recorded, with two things shortened: the lists of the ``init`` line, and the CLI's
temporary paths. Lines that come from an issue say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from typing import TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from topics import AGENT_TURNS, PROVIDER_EVENTS
from topics import headers as names
from topics.headers import Headers

FILES = ("histories.jsonl", "streams.jsonl")


class Turns(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="to", tag=AGENT_TURNS):
    """Records for the session's log; ``text`` is one that is not well-formed, as it came."""

    records: tuple[Raw, ...] = ()
    text: str = ""


class Events(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="to", tag=PROVIDER_EVENTS):
    """One run of a provider's stream, a line a record, and why it ended."""

    source: str
    run: str
    lines: tuple[str, ...]
    exit: str


class Wait(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="to", tag="wait"):
    """The client goes on once the worker has appended so many turns to the session's log."""

    recorded: int


Step: TypeAlias = Turns | Events | Wait


class Recording(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One session. ``sent`` are the messages of its client's own request, where they are not those of its log."""

    session: str
    title: str
    source: str
    feed: tuple[Step, ...]
    sent: Raw | UnsetType = UNSET


class Input(Struct, frozen=True):
    """One record to write; None for a value ends a run."""

    topic: str
    value: bytes | None
    headers: Headers = ()


def fleet() -> list[Recording]:
    decoder = msgspec.json.Decoder(Recording)
    folder = files("pipeline.demo").joinpath("fleet")
    return [decoder.decode(line) for name in FILES for line in folder.joinpath(name).read_bytes().splitlines()]


def inputs(recording: Recording) -> Iterator[Input | Wait]:
    """A session's records, one by one, and where its client waits."""
    for step in recording.feed:
        match step:
            case Wait():
                yield step
            case Turns():
                yield from (Input(AGENT_TURNS, bytes(record)) for record in step.records)
                if step.text:
                    yield Input(AGENT_TURNS, step.text.encode())
            case Events():
                yield from _events(step)


def _events(step: Events) -> Iterator[Input]:
    headers = ((names.SOURCE, step.source.encode()), (names.RUN, step.run.encode()))
    for line in step.lines:
        yield Input(PROVIDER_EVENTS, line.encode(), headers)
    yield Input(PROVIDER_EVENTS, None, (*headers, (names.EXIT, step.exit.encode())))
