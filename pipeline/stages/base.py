"""The interface between the engine and a stage. A stage is pure; the engine owns brokers, transactions and clocks.

The engine creates one stage object for each source partition, passes it the partition's state changelog record by
record (``restore``), then the source records batch by batch (``process``), and writes the results in one transaction. A
record that cannot be processed becomes a dead letter: the record unchanged, with headers that give the reason and the
record's position.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from msgspec import Raw, Struct, field

from reknit.pipeline import __version__
from reknit.pipeline.errors import ReknitError
from reknit.topics import DEAD_LETTERS, LARGEST_OUTPUT, positions
from reknit.topics import headers as names
from reknit.topics.headers import Headers
from reknit.topics.trace import breaks_grammar, trace_of


class Record(Struct, frozen=True, kw_only=True):
    """One source record as the broker holds it. ``timestamp`` is in milliseconds since the epoch.

    ``base`` is 0, unless the input topic was re-created and accepted: the offsets of its former topics end before it.
    ``scaled`` are the smaller sources of the value's images, by the digests of their data
    (``reknit.pipeline.session.scaled``).
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int = 0
    base: int = 0
    scaled: Mapping[str, Raw] = MappingProxyType({})

    @property
    def unique_offset(self) -> int:
        """The offset, counted over all topics that the input has had."""
        return self.base + self.offset


def place_of(record: Record, topic: str) -> str:
    """A record as headers name it: topic without prefix, partition, offset."""
    return f"{topic}/{record.partition}/{record.offset}"


class Output(Struct, frozen=True):
    """One record to publish. ``topic`` is the contract's name, without prefix; the partition is the source's."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def passed_on(record: Record) -> Headers:
    """Return the headers that all outputs of a record copy unchanged: its producer, and the trace that it belongs to.

    Malformed ones are dropped (``count_dropped``), because nothing depends on them.
    """
    kept = dict(trace_of(record.headers))
    return tuple(
        (name, value)
        for name, value in dict(record.headers).items()
        if name in kept or (name == names.PRODUCER and not names.fault_of(value))
    )


def count_dropped(
    headers: Headers, known: Collection[str], topic: str, records: int, tally: Counter[tuple[str, ...]]
) -> None:
    """Count headers that the contract knows, that are malformed, and that ``records`` records were taken without."""
    for name, value in dict(headers).items():
        if name in known and (names.fault_of(value) or breaks_grammar(name, value)):
            tally["reknit_headers_dropped_total", topic, name] += records


class Result(Struct, kw_only=True):
    """The result of a batch: records to publish and state to keep, in order.

    ``changes`` has at most one entry for each key; None deletes it. ``tally`` counts metric events by ``(metric name,
    *label values)``; the engine adds them to the metrics once the batch is committed.
    """

    outputs: list[Output] = field(default_factory=list)
    changes: dict[bytes, bytes | None] = field(default_factory=dict)
    tally: dict[tuple[str, ...], float] = field(default_factory=dict)


class StoppedError(ReknitError):
    """A record cannot be processed, and by policy the worker ends there; nothing from it on is committed."""

    fault = "caller"


def stopped(record: Record, topic: str, error: ReknitError) -> StoppedError:
    """The error with which a worker ends at a record; it holds nothing of the record's content."""
    return StoppedError(
        "stopped",
        f"{place_of(record, topic)} cannot be processed ({error.code}), and on_dead_letter is `stop`. With `go-on`, "
        "`follow` or `park` the record goes into the dead letters.",
    )


# Formats of state: with 1 a session's head is always written whole, with 2 also as what has changed of it; with 3 a
# session may be in the middle of a release. A build reads all of them. A partition continues with the greater of the
# format that it was written in and the one that the configuration names.
STATE_FORMATS = (1, 2, 3)

POSITION = positions.POSITION
position_value = positions.position_value
read_position = positions.read_position

# Used in place of a session's id for state of the partition as a whole.
NO_SESSION = b""


class Store(Protocol):
    """The committed changelog records of a partition, by session.

    Records under ``NO_SESSION`` need not be returned: a stage that has read the whole changelog has them in memory.
    """

    def put(self, session: bytes, key: bytes, value: bytes | None) -> None:
        """Keep one record of a session; None deletes it."""

    def read(self, session: bytes) -> Mapping[bytes, bytes]:
        """All records of a session, none where it is not known."""


class Live(Struct, frozen=True):
    """The number of live sessions of a stage, their memory, and how many the last commit released.

    ``erase``: a session was forgotten, so deleted records must not stay in a store's files either.
    """

    sessions: int = 0
    memory_bytes: int = 0
    evicted: int = 0
    erase: bool = False


class Stage(Protocol):
    """Source records of one partition to output records and state."""

    topic: str  # the source, by its contract name
    state_topic: str  # the changelog, by its contract name

    def keep_in(self, store: Store) -> None:
        """Use this store, which may hold records already."""
        del store

    def use_format(self, state_format: int) -> None:
        """Write this format of state. The caller passes on what is due, so work is done in slices if the format can."""
        del state_format

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one changelog record, oldest first; None deletes the key."""

    def process(self, records: Sequence[Record]) -> Result:
        """Process records in order. The content of a record never raises: it becomes a dead letter.

        Raises:
            StoppedError: by policy the worker ends at such a record.
        """

    def scales(self, key: bytes) -> bool:
        """Return True if the images of a session's next record may have to be scaled first."""
        del key
        return False

    def due_record(self) -> Record | None:
        """The record, kept in state, whose turn has come; the next one to be given to ``process``, alone.

        The position is past it, and does not move with it: the changes that ``process`` returns record that it was
        taken. Until none is due, the records before the position are not done.
        """
        return None

    def drop_due(self, record: Record) -> dict[bytes, bytes | None]:
        """Take a record that is due out of the state, and change nothing else; returns what that changes.

        For one that ``process`` and ``refuse`` raise for.
        """
        del record
        return {}

    def released_at(self) -> int | None:
        """Return the unique offset of the record that released the session whose record is due next."""

    def has_room(self) -> bool:
        """Return True if more source records may come before those that are due were taken."""
        return True

    def committed(self, changes: Mapping[bytes, bytes | None], room: int) -> Live:
        """These changes of ``process`` are durable now; ``room`` is how much memory the sessions at work may take."""
        del changes, room
        return Live()

    def refuse(self, record: Record, error: ReknitError) -> Result:
        """Put a record into the dead letters that the engine found cannot be processed; raises as ``process``."""

    def levels(self) -> dict[str, int]:
        """Return current amounts of state, by the name of their metric."""


# A header holds an error's words and place, not a copy of the input that an error may quote.
LONGEST_MESSAGE = 1000
# The space that the copied key and the headers may take in the largest record.
ROOM_FOR_HEADERS = 64 * 1024


# Errors whose dead letters hold nothing of the record but its key: the session was forgotten.
_WITHHELD = frozenset({"forgotten"})


def dead_letter(record: Record, topic: str, error: ReknitError) -> Output:
    """Return the unchanged record with ``reknit.error.*`` headers; a value that does not fit is replaced by its digest.

    Header values that are not UTF-8 are escaped. Headers of an earlier dead letter are removed: a header from elsewhere
    could make this one look like a note about another dead letter.
    """
    why = error_headers(
        error.code,
        topic,
        record.partition,
        record.offset,
        rule=error.rule or "",
        path=error.path,
        message=error.message,
        base=record.base,
    )
    if error.code in _WITHHELD:
        return Output(DEAD_LETTERS, record.key, None, why)
    own = tuple(header for header in record.headers if not header[0].startswith(names.ERROR_PREFIX))
    headers = (*names.escaped(own), *why)
    value = None if names.find_dataref(record.headers) else record.value
    if value is not None and len(value) > LARGEST_OUTPUT - ROOM_FOR_HEADERS:
        headers = (*headers, (names.ERROR_VALUE_SHA256, hashlib.sha256(value).hexdigest().encode()))
        value = None
    return Output(DEAD_LETTERS, record.key, value, headers)


def error_headers(
    code: str,
    topic: str,
    partition: int,
    offset: int,
    *,
    rule: str = "",
    path: str = "",
    message: str = "",
    base: int = 0,
) -> Headers:
    """Return the headers that a dead letter has after those of its record; ``topic`` is the contract's name."""
    words = (
        (names.ERROR_CODE, code),
        (names.ERROR_RULE, rule),
        (names.ERROR_PATH, path),
        (names.ERROR_MESSAGE, message),
    )
    return (
        # A message may quote a lone surrogate of the input; a header is UTF-8.
        *((name, text[:LONGEST_MESSAGE].encode("utf-8", "replace")) for name, text in words if text),
        (names.ERROR_TOPIC, topic.encode()),
        (names.ERROR_PARTITION, b"%d" % partition),
        (names.ERROR_OFFSET, b"%d" % offset),
        *(((names.ERROR_BASE, b"%d" % base),) if base else ()),
        (names.ERROR_VERSION, __version__.encode()),
    )
