"""The demo's fleet: recorded sessions, their providers' answers without Reknit, and a report on each.

The fleet is the records of each session's agent and provider, in order. ``fleet/histories.jsonl`` are broken histories
as clients keep them, one or more for every way in which providers were seen to refuse one; ``source`` names where.
``fleet/streams.jsonl`` are stream-json lines of real versions of the Claude CLI whose responses were cut, as recorded,
with two parts shortened: the lists of the ``init`` line, and the CLI's temporary paths. Lines that are from an issue
say so. Others are the outputs of ``codex exec --json`` and the Gemini CLI whose connections were cut, the latter with
the run's part of its transcript.

A report is made only from the records that the pipeline published. With at-least-once delivery a record may occur
twice. Each one names its cause, so repetitions are recognised: requests by their id, fixes and dead letters by the
source record, items by the rules of ``reknit.topics.items``. The provider's answer without Reknit is the judgement of
its rules on the client's own request.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from reknit.pipeline.registry import find_source, target_named
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.validation import validate
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS, SESSION_ITEMS
from reknit.topics import headers as names
from reknit.topics.headers import Headers
from reknit.topics.items import AnyItem, ItemRetracted
from reknit.topics.records import RECORDED, FixRecord
from reknit.topics.reducer import Entry, View

FILES = ("histories.jsonl", "streams.jsonl")


class Turns(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="to", tag=AGENT_TURNS):
    """Records for the session's log; ``text`` is one that is not well-formed, unchanged."""

    records: tuple[Raw, ...] = ()
    text: str = ""


class Events(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="to", tag=PROVIDER_EVENTS):
    """One run of a provider's stream, a line a record, why it ended, and what its program's transcript has of it."""

    source: str
    run: str
    lines: tuple[str, ...]
    exit: str
    transcript: tuple[str, ...] = ()


class Wait(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="to", tag="wait"):
    """The client continues once the worker has appended this many turns to the session's log."""

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
    folder = files("reknit.pipeline.demo").joinpath("fleet")
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
    run = (names.RUN, step.run.encode())
    headers = ((names.SOURCE, step.source.encode()), run)
    expected = ((names.TRANSCRIPT, b"expected"),) if step.transcript else ()
    for line in step.lines:
        yield Input(PROVIDER_EVENTS, line.encode(), (*headers, *expected))
    for line in step.transcript:
        yield Input(PROVIDER_EVENTS, line.encode(), ((names.SOURCE, find_source(step.source).transcript.encode()), run))
    yield Input(PROVIDER_EVENTS, None, (*headers, (names.EXIT, step.exit.encode())))


# The worker's default, which a session that names no target gets.
_DEFAULT_TARGETS = ("anthropic",)

# JSON is read with the standard library here: a client's own request may hold content that msgspec refuses, such as a
# lone surrogate, and must be judged with it.
Json = dict[str, Any]


class Refusal(Struct, frozen=True, kw_only=True):
    """The first thing that a target finds wrong. Where ``tolerated``, it lets it pass, and stricter ones do not."""

    target: str
    rule: str
    message: str
    tolerated: bool = False


class BrokenRequest(Struct, kw_only=True):
    """The request of a client without Reknit: its unchanged log, and the policy of its session."""

    targets: Sequence[str] = _DEFAULT_TARGETS
    policy: Json = {}
    head: Json = {}
    messages: list[Json] = []


def refusals(recording: Recording) -> list[Refusal]:
    """Return the violations of the client's history for each target of the session; nothing for one that takes it.

    A session whose log is also written from its stream has no client history to judge.
    """
    if any(isinstance(step, Wait) for step in recording.feed):
        return []
    request = broken_request(recording)
    found = ((target, _first(_judged(target, request))) for target in request.targets if request.messages)
    return [
        Refusal(target=target, rule=worst.rule, message=worst.message, tolerated=worst.severity == "soft")
        for target, worst in found
        if worst is not None
    ]


def broken_request(recording: Recording) -> BrokenRequest:
    request = BrokenRequest()
    for record in _log(recording):
        match record["type"]:
            case "session.opened":
                _open(request, record)
            case "history.restored":
                request.messages = record["messages"]
            case "turn.appended":
                request.messages.append(record["message"])
    if recording.sent is not UNSET:
        request.messages = json.loads(bytes(recording.sent))
    return request


def _log(recording: Recording) -> Iterator[Json]:
    for record in inputs(recording):
        if isinstance(record, Input) and record.topic == AGENT_TURNS and record.value is not None:
            try:
                yield json.loads(record.value)
            except json.JSONDecodeError:
                continue  # a torn record was never part of a history


def _open(request: BrokenRequest, record: Json) -> None:
    request.targets = record.get("targets", _DEFAULT_TARGETS)
    request.policy = record.get("policy", {})
    request.head = {name: record[name] for name in ("model", "system", "tools") if name in record}
    request.head |= record.get("params", {})


def _judged(target: str, request: BrokenRequest) -> list[Violation]:
    if target_named(target).is_enveloped:
        return [violation for line in _envelopes(request.messages) for violation in validate(line, target)]
    return validate(request.head | {"messages": request.messages}, target)


def _envelopes(messages: Sequence[Json]) -> Iterator[bytes]:
    """A history for a program's standard input, as one would first try it: a line a message, its role for a type."""
    for message in messages:
        yield json.dumps({"type": message["role"], "message": message}).encode() + b"\n"


def _first(violations: Sequence[Violation]) -> Violation | None:
    """The one that the provider answers with: the first hard one; without any, the first that it tolerates."""
    hard = (violation for violation in violations if violation.severity == "hard")
    return next(hard, None) or next((v for v in violations if v.severity == "soft"), None)


_ITEMS = msgspec.json.Decoder(AnyItem)
_FIXES = msgspec.json.Decoder(FixRecord)
# Blocks that a screen shows. The agent program's own messages are not the user's.
_SHOWN = ("text", "thinking", "tool_use")
# The code of a dead letter of a request that could not be repaired.
_REJECTED = "rejected"


class Piece(Struct, frozen=True, kw_only=True):
    """A block of a stream: its type, and its text or, of a call, the tool's name and the input so far."""

    type: str
    text: str


class Letter(Struct, frozen=True, kw_only=True):
    """Why a record is among the dead letters."""

    code: str
    message: str


class SessionReport(Struct, frozen=True, kw_only=True):
    """The report on one session. Counts are of records; ``valid`` is None if no request was published.

    ``met`` are the provider's refusals without Reknit, ``fixes`` the repairs (with counts, by code), ``lossy`` the
    number of these that lost content or added words; ``promoted``, ``retracted`` and ``incomplete`` are the items that
    a screen would have missed, kept or shown as whole; ``unseen`` results that no item had shown, ``notices`` errors
    that the stream reported.
    """

    session: str
    kind: Literal["history", "stream"]
    title: str
    source: str
    met: list[Refusal]
    fixes: dict[str, int]
    lossy: int
    requests: dict[str, int]
    valid: bool | None
    rejected: list[str]
    dead_letters: list[Letter]
    items: int
    promoted: list[Piece]
    retracted: list[Piece]
    incomplete: list[Piece]
    unseen: list[str]
    notices: list[str]
    recorded: int


class Gathered:
    """The published records of one session, as they arrive."""

    def __init__(self) -> None:
        self._requests: dict[str, tuple[str, str | None, bytes]] = {}
        self._fixes: dict[tuple[int, int], FixRecord] = {}
        self._letters: dict[tuple[str, str, str], Letter] = {}
        self._recorded: set[str] = set()
        self._view = View()
        self._retracted: dict[str, Piece] = {}

    @property
    def recorded(self) -> int:
        """The number of turns that the worker has appended to the session's log."""
        return len(self._recorded)

    def add_record(self, topic: str, value: bytes | None, headers: Headers) -> None:
        """Keep one record; ``topic`` is the contract's name."""
        said = dict(names.as_texts(headers))
        if topic == DEAD_LETTERS:
            self._add_letter(said)
        elif value is None:
            return
        elif topic == SESSION_ITEMS:
            self._add_item(value)
        elif topic == HISTORY_FIXES:
            fix = _FIXES.decode(value)
            self._fixes[fix.offset, fix.number] = fix
        elif topic == PROVIDER_REQUESTS:
            self._requests[said[names.REQUEST_ID]] = (said[names.TARGET], said.get(names.MODEL), value)
        elif topic == AGENT_TURNS:
            self._add_turn(value)

    def _add_letter(self, said: Mapping[str, str]) -> None:
        place = (said[names.ERROR_TOPIC], said[names.ERROR_PARTITION], said[names.ERROR_OFFSET])
        self._letters[place] = Letter(code=said[names.ERROR_CODE], message=said.get(names.ERROR_MESSAGE, ""))

    def _add_item(self, value: bytes) -> None:
        item = _ITEMS.decode(value)
        if isinstance(item, ItemRetracted) and item.item_id not in self._retracted:
            withdrawn = self._view.find(item.item_id)
            if withdrawn is not None:
                self._retracted[item.item_id] = _piece(withdrawn)
        self._view.apply(item)

    def _add_turn(self, value: bytes) -> None:
        try:
            record: dict[str, Any] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            return  # the client's own torn record
        if record.get("origin") == RECORDED:
            self._recorded.add(record["id"])

    def report(self, recording: Recording) -> SessionReport:
        fixes = list(self._fixes.values())
        letters = list(self._letters.values())
        shown = [entry for entry in self._view.entries if entry.item_type in _SHOWN]
        results = self._view.results.values()
        return SessionReport(
            session=recording.session,
            kind="stream" if any(isinstance(step, Events) for step in recording.feed) else "history",
            title=recording.title,
            source=recording.source,
            met=refusals(recording),
            fixes=dict(sorted(Counter(fix.code for fix in fixes).items())),
            lossy=sum(not fix.lossless for fix in fixes),
            requests=dict(sorted(Counter(target for target, _, _ in self._requests.values()).items())),
            valid=self._valid(),
            rejected=[letter.message for letter in letters if letter.code == _REJECTED],
            dead_letters=[letter for letter in letters if letter.code != _REJECTED],
            items=len(shown),
            promoted=[_piece(entry) for entry in shown if entry.origin == "promoted" and entry.parent is None],
            retracted=list(self._retracted.values()),
            incomplete=[_piece(entry) for entry in shown if entry.incomplete],
            unseen=[result.result or "" for result in results if result.unseen],
            notices=[notice.message for notice in self._view.notices.values()],
            recorded=self.recorded,
        )

    def _valid(self) -> bool | None:
        """Return True if the provider's rules, asked again, find nothing in any request that left."""
        if not self._requests:
            return None
        return not any(
            violation.severity == "hard"
            for target, model, body in self._requests.values()
            for violation in validate(body, target, model)
        )


def _piece(entry: Entry) -> Piece:
    if entry.item_type != "tool_use":
        return Piece(type=entry.item_type, text=entry.text)
    given = bytes(entry.input).decode() if entry.input is not None else entry.text
    return Piece(type=entry.item_type, text=f"{entry.started.name} {given}".strip())
