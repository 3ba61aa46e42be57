"""``reknit dead-letters``: list, retry and drop records that could not be processed.

Letters stay in their topic until its retention removes them. A later record of the topic, a note, reports that a letter
was retried or dropped. The id of a retried record is made of the place where it failed, so concurrent retries count
once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from typing import Any

import click
import msgspec
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from msgspec import UNSET, Raw, Struct

from reknit.pipeline import __version__
from reknit.pipeline.cli import Exit, Group, Progress, fail, read_input, say, write_json
from reknit.pipeline.cli.broker import run_with_broker
from reknit.pipeline.cli.config import JSON, Since, with_config
from reknit.pipeline.cli.sessions import RECORD, Standing, as_json, release_of, repaired_record, retry_id, standing
from reknit.pipeline.client import Place
from reknit.pipeline.errors import InputError
from reknit.pipeline.kafka.partitions import partitions_of
from reknit.pipeline.kafka.reading import read_partitions, reader
from reknit.pipeline.kafka.sending import producing
from reknit.pipeline.letters import REFUSED
from reknit.pipeline.settings import Config
from reknit.topics import AGENT_TURNS, DEAD_LETTERS, qualified
from reknit.topics import headers as names
from reknit.topics.headers import DeadLetterHeaders
from reknit.topics.records import ProviderAnswered, RequestWanted

# For these codes the turn was taken, but its output was not published.
_ASKED_AGAIN = {"rejected", "size", "refused_foreseen", "refused_missed", "refused_unknown"}
# A session that expired or was forgotten takes no record of its earlier life.
_OVER = {"expired", "forgotten"}


class Letter(Struct, frozen=True):
    """A dead letter, and its handling: ``retried``, ``dropped``, or nothing yet."""

    partition: int
    offset: int
    record: ConsumerRecord
    why: DeadLetterHeaders
    done: str = ""

    @property
    def place(self) -> str:
        return f"{self.partition}/{self.offset}"

    @property
    def failed(self) -> Place:
        """The place of the record that could not be processed."""
        return Place(self.why.topic, self.why.partition, self.why.offset)

    @property
    def session(self) -> str | None:
        return None if self.record.key is None else self.record.key.decode("utf-8", "replace")

    @property
    def original_headers(self) -> list[tuple[str, bytes | None]]:
        """The headers of the record that a worker takes."""
        found = names.well_formed(self.record.headers)
        return [header for header in found if not header[0].startswith(names.ERROR_PREFIX)]

    def shown(self) -> dict[str, object]:
        """Return its row in a list, without content."""
        said = {"rule": self.why.rule, "path": self.why.path, "done": self.done or UNSET}
        known = {name: value for name, value in said.items() if value not in {UNSET, None}}
        return {
            "letter": self.place,
            "session": self.session,
            "code": self.why.code,
            "record": str(self.failed),
            **known,
        }


class Left(Struct, frozen=True):
    """Why a letter was not retried; ``record`` is a record that could be given in its place."""

    why: str
    record: str = ""

    def __str__(self) -> str:
        return f"{self.why}; give {self.record} with --record" if self.record else self.why


class Retry(Struct, frozen=True):
    """The value to write to the session's log for a letter, or the reason against it."""

    value: bytes | None = None
    left: Left | None = None


def retry_of(letter: Letter, session: Standing | None, record: bytes | None) -> Retry:
    """Return the record to write for a letter.

    Args:
        letter: the letter.
        session: the status of its session; None if no state is kept.
        record: replaces the failed record.
    """
    why, value = letter.why, record or letter.record.value
    base = why.base or 0
    name = retry_id(letter.failed, base)
    left = obstacle(why, letter.record.key, value, is_replaced=record is not None)
    if left is not None:
        return Retry(left=left)
    if why.code.startswith(REFUSED) and session is not None and _is_superseded(letter, session):
        return Retry(left=Left("a later request has superseded the refused one"))
    if why.code in _ASKED_AGAIN:
        return Retry(msgspec.json.encode(RequestWanted(id=name)))
    # The check for obstacles has found a value that is an object.
    value = value or b"{}"
    fields = msgspec.json.decode(value, type=dict[str, Raw])
    failed = None if session is None else session.failed
    if session is not None and failed is not None and (failed.base, failed.offset) == (base, why.offset):
        return Retry(release_of(session, value))
    if session is not None and session.follows and bytes(fields.get("type", b"")) != b'"history.restored"':
        return Retry(left=Left("its session follows an earlier letter; restore its history first"))
    fields.setdefault("id", Raw(msgspec.json.encode(name)))
    return Retry(msgspec.json.encode(fields))


def obstacle(
    why: DeadLetterHeaders, key: bytes | None, value: bytes | None, *, is_replaced: bool = False
) -> Left | None:
    """Return why no retry of a letter can succeed, whatever the status of its session; None if one can.

    Args:
        why: its headers.
        key: its key.
        value: the record that a retry would write.
        is_replaced: whether this is another record in place of the failed one.
    """
    if why.topic != AGENT_TURNS:
        return Left(f"records of {why.topic} are replayed, not retried")
    if key is None:
        return Left("it has no key, so its session is unknown")
    if why.code == "bad_key":
        return Left("its key is not UTF-8, so it is of no session")
    if why.code in _OVER and not is_replaced:
        return Left("its session is over", "a record that begins it again")
    if why.code in _ASKED_AGAIN:
        return None
    if value is None:
        return Left("its value did not fit into the letter", "it")
    try:
        msgspec.json.decode(value, type=dict[str, Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Left("it is no JSON object", "what is meant")
    return None


def _is_superseded(letter: Letter, session: Standing) -> bool:
    """Return True if the session has sent its target another request since the refused one."""
    try:
        refused = msgspec.json.decode(letter.record.value or b"", type=ProviderAnswered).request_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    last = None if session.entry is None else session.entry.sent.last.get(str(letter.why.target or ""))
    return last is not None and last.request_id != refused


def note_of(letter: Letter, done: str) -> list[tuple[str, bytes | None]]:
    """Return the headers of the note about a letter."""
    why = letter.why
    note = DeadLetterHeaders(
        code=done,
        topic=why.topic,
        partition=why.partition,
        offset=why.offset,
        version=__version__,
        letter=letter.place,
        base=why.base,
    )
    return list(names.encode(note))


class Wanted(Struct, frozen=True, kw_only=True):
    """A selection of letters: those at ``places``, and others that meet every condition.

    ``may_be_gone``: a place without a letter is passed over; otherwise it is an error.
    """

    places: Collection[str] = ()
    may_be_gone: bool = False
    codes: frozenset[str] = frozenset()
    session: str | None = None
    since: int | None = None

    def __contains__(self, letter: Letter) -> bool:
        return (
            (not self.places or letter.place in self.places)
            and (not self.codes or letter.why.code in self.codes)
            and (self.session is None or letter.session == self.session)
        )


def _condition_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that select letters; the command gets the selection as ``wanted``."""

    @wraps(command)
    def with_those_wanted(
        codes: tuple[str, ...],
        session: str | None,
        since: int | None,
        places: tuple[str, ...] = (),
        **options: Any,  # noqa: ANN401  click's options
    ) -> None:
        wanted = Wanted(places=places, codes=frozenset(codes), session=session, since=since)
        command(wanted=wanted, **options)

    options = (
        click.option("--code", "codes", multiple=True, help="Only letters with this code; may be given several times."),
        click.option("--session", help="Only letters of this session."),
        click.option("--since", type=Since(), help="Only letters since then: 90s, 30m, 2h, 7d ago, or a time."),
        JSON,
    )
    for option in reversed(options):
        with_those_wanted = option(with_those_wanted)
    return with_config(with_those_wanted)


_PLACES = click.argument("places", nargs=-1, metavar="[PARTITION/OFFSET]…")
_EVERY = click.option("--all", "every", is_flag=True, help="Also those that were retried or dropped.")


@click.group("dead-letters", cls=Group)
def dead_letters_group() -> None:
    """Records that could not be processed: list, show, count, retry and drop them.

    A letter is named by its partition and offset in pipeline.dead-letters.v1, as `list` prints them.
    """


@dead_letters_group.command("list")
@_condition_options
@_EVERY
def list_command(config: Config, wanted: Wanted, *, every: bool, as_lines: bool) -> None:
    """Print letters, oldest first in each partition: the place, session and reason of each, without content."""
    for letter in _letters(config, wanted, every=every):
        write_json(letter.shown()) if as_lines else click.echo(_line(letter))


@dead_letters_group.command("show")
@_condition_options
@_PLACES
def show_command(config: Config, wanted: Wanted, *, as_lines: bool) -> None:
    """Print whole letters with headers and value, one line of JSON each."""
    del as_lines
    for letter in _letters(config, wanted, every=True):
        write_json({**letter.shown(), **as_json(DEAD_LETTERS, letter.record)})


@dead_letters_group.command("count")
@_condition_options
@_EVERY
def count_command(config: Config, wanted: Wanted, *, every: bool, as_lines: bool) -> None:
    """Count letters by the topic of the record and by code."""
    counts = Counter((letter.why.topic, letter.why.code) for letter in _letters(config, wanted, every=every))
    for (topic, code), count in sorted(counts.items()):
        shown = {"topic": topic, "code": code, "letters": count}
        write_json(shown) if as_lines else click.echo(f"{count:>8}  {topic}  {code}")


@dead_letters_group.command("retry")
@_condition_options
@RECORD
@_PLACES
def retry_command(config: Config, wanted: Wanted, *, record: str | None, as_lines: bool) -> None:
    """Write letters to their sessions' log again, each once, however many people do it.

    A record that parked its session is released with it. After `rejected`, `size` and refusals of a provider, a new
    request is made. Any other record becomes the last of its session. Exits with 2 if a letter was left, and says why.
    """
    _act(config, wanted, "retried", record, as_lines=as_lines)


@dead_letters_group.command("drop")
@_condition_options
@_PLACES
def drop_command(config: Config, wanted: Wanted, *, as_lines: bool) -> None:
    """Mark letters as dropped; they stay in their topic, and `list --all` shows them."""
    _act(config, wanted, "dropped", None, as_lines=as_lines)


def _letters(config: Config, wanted: Wanted, *, every: bool) -> list[Letter]:
    found = run_with_broker(config, lambda: read_letters(config, wanted))
    return [letter for letter in found if every or not letter.done]


async def read_letters(config: Config, wanted: Wanted) -> list[Letter]:
    async with reader(config) as consumer:
        return await _found(consumer, config, wanted)


async def _found(consumer: AIOKafkaConsumer, config: Config, wanted: Wanted) -> list[Letter]:
    """Return the selected letters, with the notes about them."""
    name = qualified(DEAD_LETTERS, config.prefix)
    numbers = await partitions_of(consumer, config, DEAD_LETTERS)
    letters: dict[str, Letter] = {}
    done: dict[str, str] = {}
    places = [TopicPartition(name, number) for number in numbers]
    stretches = _stretches(places, wanted.places) if wanted.places else {}
    places = [*stretches] if wanted.places else places
    async for record in read_partitions(consumer, places, wanted.since, Progress(), stretches=stretches):
        try:
            why = names.decode(record.headers, DeadLetterHeaders)
        except msgspec.ValidationError as error:
            say(f"{record.partition}/{record.offset} is not a worker's letter and is passed over: {error}")
            continue
        letter = Letter(record.partition, record.offset, record, why)
        if letter.why.letter:
            done[letter.why.letter] = letter.why.code
        elif letter in wanted:
            letters[letter.place] = letter
    if not wanted.may_be_gone and (missing := set(wanted.places) - letters.keys()):
        raise InputError("letter_unknown", f"there is no such letter: {', '.join(sorted(missing))}")
    found = [msgspec.structs.replace(letter, done=done.get(place, "")) for place, letter in letters.items()]
    return sorted(found, key=lambda letter: (letter.partition, letter.offset))


def _stretches(partitions: Sequence[TopicPartition], places: Collection[str]) -> dict[TopicPartition, tuple[int, int]]:
    """Return the offsets to read for the letters at these places and the notes after them, by partition."""
    found = {}
    for partition in partitions:
        begins = f"{partition.partition}/"
        offsets = [text.removeprefix(begins) for text in places if text.startswith(begins)]
        if first := [int(offset) for offset in offsets if offset.isdecimal()]:
            found[partition] = min(first), sys.maxsize
    return found


def _line(letter: Letter) -> str:
    shown = letter.shown()
    more = " ".join(str(shown[name]) for name in ("rule", "path", "done") if name in shown)
    return (
        f"{letter.place:>10}  {letter.why.code:<16}  {letter.session or '(no key)'}  {shown['record']}  {more}".rstrip()
    )


def _act(config: Config, wanted: Wanted, done: str, record: str | None, *, as_lines: bool) -> None:
    if wanted == Wanted():
        fail(InputError("letters_unnamed", "name the letters, or say which with --code, --session or --since"))
    if record is not None and len(wanted.places) != 1:
        fail(InputError("letters_unnamed", "--record stands for one letter; name it"))
    given = None if record is None else repaired_record(read_input(record))
    left = False
    outcomes = run_with_broker(config, lambda: act_on_letters(config, wanted, done, given))
    say(f"{sum(not why for _, why in outcomes)} letters {done}, {sum(bool(why) for _, why in outcomes)} left")
    for letter, outcome in outcomes:
        left = left or bool(outcome)
        if as_lines:
            write_json({**letter.shown(), **({"left": str(outcome)} if outcome else {"done": done})})
        else:
            click.echo(f"{_line(letter)}: {f'left, {outcome}' if outcome else done}")
    raise SystemExit(int(Exit.UNUSABLE if left else Exit.CLEAN))


async def act_on_letters(
    config: Config, wanted: Wanted, done: str, record: bytes | None = None
) -> list[tuple[Letter, Left | None]]:
    """Retry or drop each selected letter; return each with the reason why it was left, or None.

    ``record`` replaces the failed record of the one letter that is retried.

    Raises:
        InputError: the letter or the topic does not exist.
        BrokerError: no broker answers, or it refuses.
    """
    async with reader(config) as consumer:
        letters = [letter for letter in await _found(consumer, config, wanted) if wanted.places or not letter.done]
        sessions: dict[tuple[int, bytes], Standing] = {}
        if done == "retried":
            whose = {(letter.why.partition, letter.record.key) for letter in letters if letter.record.key is not None}
            sessions = {(one.partition, one.key): one for one in await standing(consumer, config, whose)}
    outcomes: list[tuple[Letter, Left | None]] = []
    async with producing(config) as producer:
        for letter in letters:
            key = letter.record.key
            if letter.done:  # by another user, possibly at the same time
                outcomes.append((letter, None if letter.done == done else Left(f"it was {letter.done}")))
                continue
            if done == "retried":
                retry = retry_of(letter, sessions.get((letter.why.partition, key)), record)
                if retry.value is None:
                    outcomes.append((letter, retry.left))
                    continue
                # First the record, then the note: after a crash between them the retry repeats, with the same id.
                log = qualified(AGENT_TURNS, config.prefix)
                where = {"partition": letter.why.partition, "headers": letter.original_headers}
                await producer.send_and_wait(log, retry.value, key=key, **where)
            notes = qualified(DEAD_LETTERS, config.prefix)
            await producer.send_and_wait(notes, key=key, partition=letter.partition, headers=note_of(letter, done))
            outcomes.append((letter, None))
    return outcomes
