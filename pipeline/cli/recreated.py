"""``reknit topics accept`` and ``reknit topics rebuild``: the commands for a topic that was re-created."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from reknit.pipeline.cli import say, write_json
from reknit.pipeline.cli.broker import run_with_broker
from reknit.pipeline.cli.config import session_defaults, setting_option, with_config
from reknit.pipeline.errors import InputError, ReknitError, expected_one_of
from reknit.pipeline.kafka.admin import TIMEOUT_SECONDS, connected
from reknit.pipeline.kafka.reading import read_partitions, reader
from reknit.pipeline.objects import open_objects
from reknit.pipeline.settings import Config, StateSettings
from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    EVENTS_STATE,
    HISTORY_FIXES,
    INPUTS,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
    TURNS_STATE,
    qualified,
)
from reknit.topics import headers as names
from reknit.topics.headers import DeadLetterHeaders, Headers
from reknit.topics.items import AnyItem, ItemDelta
from reknit.topics.records import FixRecord

if TYPE_CHECKING:
    from reknit.pipeline.engine.recreated import Outcome, Start, WasPublished
    from reknit.pipeline.engine.runtime import StageFactory
    from reknit.pipeline.stages.base import Output, Record
    from reknit.topics.positions import GroupPosition

_STATE_OF = {TURNS_STATE: AGENT_TURNS, EVENTS_STATE: PROVIDER_EVENTS}
# Timestamps of outputs and inputs are from different clocks.
_SKEW_MS = 60_000


def _worker_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a worker's pipeline; the command gets ``config``."""
    command = setting_option("delivery", type=click.Choice(["exactly-once", "at-least-once"]))(command)
    return with_config(setting_option("source_prefix")(command))


@click.command("accept")
@click.argument("topic")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "end"]),
    required=True,
    help="Continue with the first record of the new topic, or after its last.",
)
@click.option(
    "--unverified", is_flag=True, help="Accept it also if no stored topic id shows that the topic was re-created."
)
@_worker_options
def accept_command(config: Config, topic: str, start: Start, *, unverified: bool) -> None:
    """Continue with an input TOPIC that was re-created, while no worker runs.

    Sessions keep their state. Prints one line per partition. Exits with 2, and changes nothing, if the state is not
    whole or workers run.
    """
    source = topic.removeprefix(config.inputs_prefix)

    async def work() -> list[Outcome]:
        from reknit.pipeline.engine.recreated import accept

        if source not in INPUTS:
            raise InputError("unknown_topic", expected_one_of(INPUTS, topic))
        group = await _positions(config)
        stages = _stages(config)
        return await accept(
            _in_memory(config),
            {source: stages[source]},
            source,
            start,
            group,
            scope=_scope(config),
            unverified=unverified,
        )

    _print(run_with_broker(config, work))


@click.command("rebuild")
@click.argument("topic", required=False)
@click.option("--force", is_flag=True, help="Rebuild also state that is whole.")
@_worker_options
def rebuild_command(config: Config, topic: str | None, *, force: bool) -> None:
    """Rebuild lost state from the inputs, while no worker runs: of one state TOPIC, or of both.

    Publishes nothing. Each input is processed from its first record to the workers' position; the configuration must
    be that of the workers. Prints one line per partition; the next run finishes one that was interrupted.
    """
    state_topic = None if topic is None else topic.removeprefix(config.prefix)

    async def work() -> list[Outcome]:
        from reknit.pipeline.engine.recreated import rebuild

        if state_topic is not None and state_topic not in _STATE_OF:
            raise InputError("unknown_topic", expected_one_of(_STATE_OF, str(topic)))
        group = await _positions(config)
        wanted = INPUTS if state_topic is None else (_STATE_OF[state_topic],)
        async with reader(config) as consumer:
            return await rebuild(
                _in_memory(config),
                {source: make for source, make in _stages(config).items() if source in wanted},
                group,
                PublishedOutputs(config, consumer),
                scope=_scope(config),
                objects=open_objects(config),
                force=force,
                on_begin=_say_begun,
            )

    _print(run_with_broker(config, work))


def _stages(config: Config) -> Mapping[str, StageFactory]:
    from reknit.pipeline.stages import stages

    return stages(session_defaults(config))


def _scope(config: Config) -> Any:  # noqa: ANN401  the engine is imported when it is used
    from reknit.pipeline.engine.runtime import Scope

    return Scope(source_prefix=config.source_prefix)


def _in_memory(config: Config) -> Config:
    """Return the configuration without a worker's files."""
    kept = StateSettings(memory_mib=config.state.memory_mib, format=config.state.format)
    return msgspec.structs.replace(config, state=kept)


async def _positions(config: Config) -> dict[tuple[str, int], GroupPosition]:
    """Return the positions that workers committed as their group's offsets.

    Raises:
        InputError: ``group_at_work``, if a worker runs.
    """
    from reknit.topics.positions import read_group_position

    group = f"{config.prefix}reknit"
    prefix = config.inputs_prefix
    async with connected(config, TIMEOUT_SECONDS + config.session_seconds) as admin:
        if not await admin.is_idle_within(group, config.session_seconds):
            raise InputError("group_at_work", f"workers of group {group} are running; stop them first")
        committed = await admin.committed(group)
    found = {
        (place.topic.removeprefix(prefix), place.partition): read_group_position(*each)
        for place, each in committed.items()
    }
    return {place: position for place, position in found.items() if position is not None}


def _say_begun(topic: str, partition: int, start: int, end: int) -> None:
    say(f"reknit: {topic} partition {partition}: offsets {start} to {end} are processed again")


def _print(outcomes: Iterable[Outcome]) -> None:
    for outcome in outcomes:
        write_json(outcome)
        if outcome.status == "rebuilt" and (outcome.first or outcome.base):
            say(
                f"reknit: {outcome.topic} partition {outcome.partition} holds nothing before offset {outcome.first}: "
                "sessions that began earlier are not whole; import them from a document"
            )


# The outputs prove how far an input was processed.


class PublishedOutputs:
    """Compares the outputs of records with those in the topics. See ``reknit.pipeline.engine.recreated.Published``."""

    def __init__(self, config: Config, consumer: AIOKafkaConsumer) -> None:
        self._config = config
        self._consumer = consumer

    async def __call__(self, topic: str, partition: int, offset: int) -> WasPublished:
        prefix = self._config.inputs_prefix
        since_ms = None
        async for record in self._read(prefix + topic, partition, first=offset):
            since_ms = record.timestamp - _SKEW_MS
            break
        published = await self._published(partition, since_ms)

        def was_published(outputs: Sequence[Output]) -> bool | None:
            made = [identity for output in outputs for identity in _identities(output.topic, output)]
            return all(map(published.has, made)) if made else None

        return was_published

    async def _published(self, partition: int, since_ms: int | None) -> _Identities:
        found = _Identities()
        for topic in (PROVIDER_REQUESTS, HISTORY_FIXES, DEAD_LETTERS, SESSION_ITEMS, *INPUTS):
            async for record in self._read(qualified(topic, self._config.prefix), partition, since_ms=since_ms):
                for identity in _identities(topic, record):
                    found.add(identity)
        return found

    def _read(self, name: str, partition: int, *, first: int = 0, since_ms: int | None = None) -> AsyncIterator[Record]:
        place = TopicPartition(name, partition)
        stretches = {place: (first, sys.maxsize)} if first else None
        return read_partitions(self._consumer, [place], since_ms, stretches=stretches)


class _Identities:
    """The published outputs. Of an item's deltas only the end counts, since batches decide where deltas are joined."""

    def __init__(self) -> None:
        self._others: set[Hashable] = set()
        self._reach: dict[Hashable, int] = {}

    def add(self, identity: Hashable | _Delta) -> None:
        if isinstance(identity, _Delta):
            self._reach[identity.item] = max(identity.end, self._reach.get(identity.item, 0))
        else:
            self._others.add(identity)

    def has(self, identity: Hashable | _Delta) -> bool:
        if isinstance(identity, _Delta):
            return identity.end <= self._reach.get(identity.item, 0)
        return identity in self._others


class _Delta(msgspec.Struct, frozen=True):
    item: tuple[bytes | None, str]
    end: int


_ITEM = msgspec.json.Decoder(AnyItem)
_FIX = msgspec.json.Decoder(FixRecord)


def _identities(topic: str, record: Output | Record) -> Iterator[Hashable | _Delta]:
    """Yield the ids of an output that a redelivery repeats, for outputs of any version."""
    try:
        yield _identity(topic, record)
    except (msgspec.MsgspecError, ReknitError, UnicodeDecodeError):
        return  # another program wrote it


def _identity(topic: str, record: Output | Record) -> Hashable | _Delta:
    key, value, headers = record.key, record.value, dict(record.headers)
    if topic == PROVIDER_REQUESTS:
        return topic, headers.get(names.REQUEST_ID)
    if topic == HISTORY_FIXES:
        fix = _FIX.decode(value or b"")
        return topic, fix.source, fix.base, fix.offset, fix.number
    if topic == DEAD_LETTERS:
        return _identity_of_letter(record.headers)
    if topic == SESSION_ITEMS:
        item = _ITEM.decode(value or b"")
        if isinstance(item, ItemDelta):
            return _Delta((key, item.item_id), item.at + len(item.content))
    return topic, key, value, tuple(sorted(headers.items()))


def _identity_of_letter(headers: Headers) -> Hashable:
    why = names.decode(headers, DeadLetterHeaders)
    return DEAD_LETTERS, why.topic, why.partition, why.base, why.offset, why.code, why.rule, why.target
