"""A stage processing a log batch by batch, as the engine drives it, optionally restarted after each batch."""

import json

import claude_lines as cli
from build import answered, called, said, user

from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.kept import Records
from reknit.topics import DEAD_LETTERS, PROVIDER_REQUESTS

KEY = b"session-1"
OPENED = {"type": "session.opened", "model": "claude-sonnet-4-5", "params": {"max_tokens": 100}}


def turn(message, **fields):
    return {"type": "turn.appended", "message": message, **fields}


def records(events, headers=(), *, key=KEY, first=0):
    """The log of one session. A value that is neither bytes nor None is encoded as JSON."""
    values = [event if event is None or isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    return [
        Record(partition=2, offset=first + at, key=key, value=value, headers=headers) for at, value in enumerate(values)
    ]


def of(found, topic):
    """Return the outputs of a batch for a topic."""
    return [output for output in found.outputs if output.topic == topic]


def letters(outputs):
    """Return the source offset and the code of each dead letter."""
    headers = [dict(output.headers) for output in outputs if output.topic == DEAD_LETTERS]
    return [(int(each["reknit.error.offset"]), each["reknit.error.code"].decode()) for each in headers]


def bodies(found):
    return [json.loads(output.value) for output in of(found, PROVIDER_REQUESTS)]


def restored(stage, state):
    """A stage that has read a changelog."""
    for key, value in state.items():
        stage.restore(key, value)
    return stage


def processed(make, batches, restart=None):
    """Return all outputs, the final stage, and its changelog.

    With ``restart`` a new stage continues after each batch. It reads the ``changelog``, or gets a ``store`` that has
    read it.
    """
    stage, state, outputs, store = make(), {}, [], Records()
    stage.keep_in(store)
    for batch in batches:
        made = stage.process(batch)
        outputs += made.outputs
        state |= made.changes
        if restart == "store":
            stage.committed(made.changes, 0)
            stage = make()
            stage.keep_in(store)
        elif restart == "changelog":
            stage = restored(make(), state)
    return outputs, stage, {key: value for key, value in state.items() if value is not None}


class Sliced:
    """Return a stage whose releases are driven in slices, as the engine does it, and its changelog.

    With ``restart`` each step is committed and a new stage takes over. It reads the ``changelog``, or gets a
    ``store`` that has read it.
    """

    def __init__(self, make, restart=None):
        self._make, self._restart, self._store = make, restart, Records()
        self.state, self.outputs = {}, []
        self._begin()

    def _begin(self):
        self.stage = self._make()
        if self._restart == "store":
            self.stage.keep_in(self._store)
        else:
            restored(self.stage, self.state)
        self.stage.use_format(3)

    def take(self, *records):
        """Return the outputs of these records, without work that becomes due after them."""
        return self._keep(self.stage.process(records))

    def refuse(self, record, error):
        return self._keep(self.stage.refuse(record, error))

    def _keep(self, made):
        self.outputs += made.outputs
        self.state |= made.changes
        self.state = {key: value for key, value in self.state.items() if value is not None}
        if self._restart == "store":
            self.stage.committed(made.changes, 0)
        if self._restart is not None:
            self._begin()
        return made.outputs

    def release(self, most=1 << 30):
        """Process up to ``most`` due records; return the outputs of each."""
        slices = []
        while len(slices) < most and (record := self.stage.due_record()) is not None:
            slices.append(self.take(record))
        return slices


def written_bytes(stage, events):
    """Return what each record writes to the changelog, with its key."""
    sizes = []
    for record in records(events):
        made = stage.process([record])
        sizes.append(sum(len(key) + len(change or b"") for key, change in made.changes.items()))
        stage.committed(made.changes, 1 << 40)
    return sizes


# Long sessions. ``words`` returns the content of a record by its number.


def settling(count, words=lambda at: f"line {at} " + "x" * 200):
    return [turn((said if at % 2 else user)(words(at))) for at in range(count)]


def with_calls_open(count, words=lambda _at: "files"):
    calls = called(*(f"c{at}" for at in range(count)))
    return [turn(user("go")), turn(calls), *(turn(answered(f"c{at}", words(at))) for at in range(count - 1))]


def deltas(count, words=lambda at: f"word{at} and more "):
    """One message of the Claude CLI."""
    pieces = [cli.block_delta(0, type="text_delta", text=words(at)) for at in range(count)]
    lines = [cli.start("m"), cli.block_start(0, cli.said("")), *pieces]
    return [line | {"session_id": "s", "uuid": f"u{at}"} for at, line in enumerate(lines)]


def in_batches(records, size):
    return [records[at : at + size] for at in range(0, len(records), size)]
