"""The real stages: rows of sessions and streams, and their results without any fault.

The stages append to each other's inputs, so the expected results are those of one run over the inputs as they are at
the end. State may be written in other pieces from run to run. It is compared by the outputs for further records.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import claude_lines as cli
import msgspec
from build import answered, call, said, user
from item_views import by_session, view_of, whole_items
from msgspec import Struct, structs
from simulation.violations import compare

from reknit.pipeline.stages import stages
from reknit.pipeline.stages.base import POSITION, Record
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.events import EventStates
from reknit.pipeline.stages.releases import RELEASE, SLICED_RELEASES
from reknit.pipeline.stages.turn_state import TurnStates
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    EVENTS_STATE,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    TURNS_STATE,
)

SESSIONS = 4
_RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "Done."}
_STATES = {AGENT_TURNS: TurnStates, PROVIDER_EVENTS: EventStates}
# Topics whose records are compared session by session: sessions interleave otherwise from run to run.
_COMPARED = (PROVIDER_REQUESTS, HISTORY_FIXES, DEAD_LETTERS, AGENT_TURNS, PROVIDER_EVENTS)


class Piece(Struct, frozen=True):
    """A part of a row: its topic, value and headers."""

    topic: str
    value: str
    headers: tuple[tuple[str, str], ...] = ()


class Script:
    """Draws the next record of a session: turns as agents write them, and lines of runs with cuts."""

    def __init__(self, stream):
        self._stream = stream
        self._lines = {}  # the rest of the run of each session
        self._released = set()
        self._count = 0

    def next(self, key):
        self._count += 1
        piece = self._line(key) if self._stream.fraction() < 0.5 else self._turn(self._count)
        if piece.value == _RELEASED:
            self._released.add(key)
        # Forgetting ends a release at once, so its results depend on how far the release is.
        return structs.replace(piece, value=_CLOSED) if piece.value == _FORGOTTEN and key in self._released else piece

    def _turn(self, number):
        """Return a turn, or an event of a session's life. Failures, releases and ends are frequent."""
        choice, earlier = self._stream.choice(_TURNS), self._stream.below(number)
        return Piece(AGENT_TURNS, choice(number, earlier))

    def _line(self, key):
        lines = self._lines.get(key, [])
        if not lines or self._stream.fraction() < 0.05:  # the run is cut, and another one begins
            name = f"r{self._count}"
            headers = (("source", "claude-cli"), ("run", name))
            run = self._stream.choice([_short_run, _long_run])
            pieces = [Piece(PROVIDER_EVENTS, json.dumps(line), headers) for line in run(name)]
            end = Piece(PROVIDER_EVENTS, "", (*headers, ("exit", self._stream.choice(["0", "137"]))))
            lines = self._lines[key] = [*pieces, end]
        return lines.pop(0)


def _short_run(name):
    """Return the lines of a run with one message, which is not streamed."""
    message = cli.whole(f"m{name}", cli.said("Done."), uuid=f"{name}-0", session_id="s")
    return [message, _RESULT | {"session_id": "s", "uuid": f"{name}-1"}]


def _long_run(name):
    """Return the lines of a run with a message that calls a tool, and one after its result."""
    pieces = [cli.start(f"m1{name}"), *cli.text("Looking "), cli.end(), *cli.call(f"t{name}", '{"command":"ls"}', 1)]
    pieces += [cli.end(1), cli.finish("tool_use"), cli.stop()]
    pieces += [{"type": "user", "message": answered(f"t{name}", "bin etc")}]
    pieces += [cli.start(f"m2{name}"), *cli.text("Two folders."), cli.end(), cli.finish("end_turn"), cli.stop()]
    pieces += [_RESULT]
    return [piece | {"session_id": "s", "uuid": f"{name}-{at}"} for at, piece in enumerate(pieces)]


def _appended(message, **more):
    return json.dumps({"type": "turn.appended", "message": message, **more})


def _opened(**policy):
    return json.dumps({"type": "session.opened", "targets": ["anthropic", "openai-chat"], "policy": policy})


_RELEASED, _CLOSED, _FORGOTTEN = (json.dumps({"type": f"session.{end}"}) for end in ("released", "closed", "forgotten"))
_TURNS = (
    *[lambda number, _: _appended(user(f"question {number}"))] * 4,
    *[lambda number, _: _appended(said(f"answer {number}"))] * 2,
    *[lambda number, _: _appended(said(call(f"c{number}")))] * 3,
    *[lambda _, earlier: _appended(answered(f"c{earlier}", f"result {earlier}"))] * 3,
    lambda number, earlier: _appended(user(f"again {number}"), id=f"i{earlier % 3}"),
    lambda number, _: _appended({"role": "nobody", "content": str(number)}),
    lambda number, _: f"no JSON: {number}",
    *[lambda _number, _earlier: _RELEASED] * 2,
    *[lambda _, earlier: _opened(expires_after=earlier % 4, record_assistant=True)] * 3,
    lambda _, earlier: (_FORGOTTEN, _CLOSED, _CLOSED)[earlier % 3],
)


class Job:
    """The work of a schedule with the real stages: its inputs with their changelogs, and the rules for its results."""

    def __init__(self, settings):
        self.states = {AGENT_TURNS: TURNS_STATE, PROVIDER_EVENTS: EVENTS_STATE}
        params = {"max_tokens": msgspec.Raw(b"1024")}
        on_dead_letter = settings.on_dead_letter
        self.stages = stages(Defaults(model="claude-sonnet-4-5", params=params, on_dead_letter=on_dead_letter))
        self.happened = Counter()
        self._exactly_once, self._format = settings.exactly_once, settings.formats[0]

    def note_commit(self, by_topic):
        """Nothing: transactions are not compared one by one."""

    def is_due(self, read, number):
        """True if a release of a parked session is in progress."""
        return any(key.startswith(RELEASE) for key in _folded(read(TURNS_STATE, number)))

    def check(self, read, number, *, is_compacted):
        """Check the results of a partition; ``read`` returns the records of a topic in it."""
        made, found = [], {topic: read(topic, number) for topic in (*_COMPARED, SESSION_ITEMS)}
        for source, state_topic in self.states.items():
            undisturbed = self._stage(source)
            records = [record_of(entry, number) for entry in read(source, number)]
            made += undisturbed.take(records)
            state = _folded(read(state_topic, number))
            self._check_state(source, number, undisturbed, state, records)
        for topic in _COMPARED:
            compare(topic, number, self._rows(topic, made), self._rows(topic, found[topic]))
        self._compare_items(number, [each for each in made if each.topic == SESSION_ITEMS], found[SESSION_ITEMS])
        self._count(found, [entry.value for entry in read(TURNS_STATE, number) if entry.key == POSITION])

    def _rows(self, topic, outputs):
        """Return outputs to a topic, each session's in order; repeated ones once where they may be."""
        rows = sorted(map(_row, _of_stages(topic, outputs)), key=_written_by)
        if self._format >= SLICED_RELEASES:
            rows = [(key, value, _without_place_of_expiry(headers)) for key, value, headers in rows]
        return rows if self._exactly_once else list(dict.fromkeys(rows))

    def _compare_items(self, number, made, found):
        expected, seen = by_session(made), by_session(found)
        compare("sessions with items", number, sorted(expected), sorted(seen))
        for key, items in expected.items():
            compare("views", number, [(key, view_of(items))], [(key, view_of(seen[key]))])
            if self._exactly_once:
                compare("items", number, whole_items(items), whole_items(seen[key]))

    def _count(self, found, positions):
        """Count the results of each kind, so that a test can require all kinds."""
        self.happened["slice of a release"] += sum(one == other for one, other in pairwise(positions))
        for topic in (PROVIDER_REQUESTS, SESSION_ITEMS, HISTORY_FIXES):
            self.happened["written", topic] += len(found[topic])
        self.happened["written", AGENT_TURNS] += len(_of_stages(AGENT_TURNS, found[AGENT_TURNS]))
        for letter in found[DEAD_LETTERS]:
            self.happened["dead letter", dict(letter.headers)["reknit.error.code"].decode()] += 1
        for end in _of_stages(PROVIDER_EVENTS, found[PROVIDER_EVENTS]):
            self.happened.update(("ended", name) for name, _ in end.headers if name != "origin")

    def _stage(self, source, state=None):
        return _Driven(self.stages[source](0), self._format, state or {})

    def _check_state(self, source, number, undisturbed, state, records):
        """The state in the changelog leads to the same outputs as that of an undisturbed run."""
        ended = [_of_ended(source, keys) for keys in (undisturbed.state, state)]
        compare("state of ended sessions", number, *ended)
        restored, last = self._stage(source, state), records[-1] if records else None
        for key in sorted({record.key for record in records}):
            probes = _probes(source, key, last)
            compare(
                f"state of {source}",
                number,
                *(list(map(_row, stage.take(probes))) for stage in (undisturbed, restored)),
            )


class _Driven:
    """A stage that gets records one by one, and each record that is due at once."""

    def __init__(self, stage, state_format, state):
        self._stage, self.state = stage, dict(state)
        for key, value in state.items():
            stage.restore(key, value)
        stage.use_format(state_format)

    def take(self, records):
        outputs = []
        for record in records:
            outputs += self._process(record)
            while (due := self._stage.due_record()) is not None:
                outputs += self._process(due)
        return outputs

    def _process(self, record):
        made = self._stage.process([record])
        self.state |= made.changes
        self.state = {key: value for key, value in self.state.items() if value is not None}
        return made.outputs


def _probes(source, key, last):
    """Further records of a session, which show its state."""
    headers = (("source", b"claude-cli"), ("run", b"probe"))
    values = {
        AGENT_TURNS: [({"type": "session.released"}, ()), (json.loads(_appended(user("probe"))), ())],
        PROVIDER_EVENTS: [(line | {"session_id": "s", "uuid": "p"}, headers) for line in (cli.start("mp"), cli.stop())],
    }
    return [
        structs.replace(last, key=key, offset=last.offset + 1 + at, value=json.dumps(value).encode(), headers=headers)
        for at, (value, headers) in enumerate(values[source])
    ]


def _of_ended(source, state):
    """Return the keys in state of sessions that have ended."""
    kind = _STATES[source]
    live = {key[1:] for key in state if key[:1] == kind.head_kind}
    return sorted(key for key in state if kind.session_of(key) and kind.session_of(key) not in live)


def _folded(entries):
    newest = {entry.key: entry.value for entry in entries if entry.key != POSITION}
    return {key: value for key, value in newest.items() if value is not None}


def _row(output):
    return output.key, output.value, tuple(output.headers)


def _written_by(row):
    """Return session and stage: both stages write fixes and dead letters, and neither waits for the other."""
    key, value, headers = row
    return key, b'"source":' in (value or b""), dict(headers).get("reknit.error.topic", b"")


def _without_place_of_expiry(headers):
    """A session does not expire while its release is in progress, so the record at which it does may differ."""
    return tuple((name, b"" if name == "expired" else value) for name, value in headers)


def _of_stages(topic, outputs):
    """Return the outputs to a topic, without the records of clients."""
    found = [output for output in outputs if getattr(output, "topic", topic) == topic]
    if topic == PROVIDER_EVENTS:
        return [output for output in found if dict(output.headers).get("origin") == b"reknit"]
    if topic == AGENT_TURNS:
        return [output for output in found if b'"origin":' in (output.value or b"")]
    return found


def record_of(entry, number):
    return Record(
        partition=number,
        offset=entry.offset,
        key=entry.key,
        value=entry.value,
        headers=entry.headers,
        timestamp=entry.timestamp,
    )
