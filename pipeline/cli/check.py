"""``reknit topics check``: the faults of a cluster for a pipeline, each with its remedy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from reknit.pipeline.cli import Exit, say, write_json
from reknit.pipeline.cli.broker import run_with_broker
from reknit.pipeline.cli.config import broker_options, configured, setting_option, wait_option
from reknit.pipeline.kafka.admin import connected, declared_topics
from reknit.pipeline.kafka.check import Finding, of_layout, of_records, of_topics
from reknit.pipeline.kafka.partitions import every_place
from reknit.pipeline.kafka.reading import read_partitions, reader
from reknit.pipeline.settings import Config
from reknit.topics import INPUTS, qualified
from reknit.topics.cluster import by_topic

# The newest records of each partition of an input that are read.
_NEWEST = 200


@click.command("check")
@setting_option("source_prefix")
@setting_option("partitions", type=int)
@setting_option("replication_factor", type=int)
@click.option(
    "--timeout", type=click.FloatRange(min=0.1), default=30.0, show_default=True, help="Seconds for the topics."
)
@wait_option
@broker_options
def check_command(timeout: float, **options: Any) -> None:  # noqa: ANN401  click's options, as `configured` takes them
    """Report what is wrong with the cluster, the topics, and the newest records of the inputs.

    Each finding is a line on stderr with its remedy, and a JSON object on stdout. Nothing is changed. The right to
    write is not tried: a worker names a missing one when it starts.

    Exits with 0 if there is nothing to report, 3 if there are only warnings, 4 if there is an error.
    """
    config = configured(**options)
    found = run_with_broker(config, lambda: _check(config, timeout))
    for finding in found:
        write_json(finding)
        say(finding.line())
    say(f"{len(found)} findings" if found else "nothing to report")
    if any(finding.severity == "error" for finding in found):
        raise SystemExit(int(Exit.REJECTED))
    raise SystemExit(int(Exit.MENDED if found else Exit.CLEAN))


async def _check(config: Config, seconds: float) -> list[Finding]:
    declared = declared_topics(config)
    inputs = [qualified(name, config.inputs_prefix) for name in INPUTS]
    async with connected(config, seconds) as admin:
        topics = await admin.describe({*inputs, *(topic.name for topic in declared)})
    differences = [each for found in by_topic(declared, topics).values() for each in found]
    findings = [*of_topics(differences), *of_layout(topics.values())]
    readable = [name for name in inputs if name in topics]
    if not readable:
        return findings
    async with reader(config) as consumer:
        for name in readable:
            findings += await _of_input(consumer, name)
    return findings


async def _of_input(consumer: AIOKafkaConsumer, name: str) -> list[Finding]:
    places = (await every_place(consumer)).get(name, [])
    try:
        records = await _newest(consumer, places)
    except TopicAuthorizationFailedError:
        remedy = "grant the rights that `reknit topics acls` prints"
        return [Finding("error", name, "this user may not read it", remedy)]
    except KafkaError as error:
        return [Finding("error", name, f"it cannot be read ({type(error).__name__})", "see the brokers' logs")]
    return of_records(name, [place.partition for place in places], records, int(time.time() * 1000))


async def _newest(consumer: AIOKafkaConsumer, places: Sequence[TopicPartition]) -> list[ConsumerRecord]:
    """Return the newest records of partitions, at most ``_NEWEST`` of each."""
    if not places:
        return []
    ends = await consumer.end_offsets(places)
    stretches = {place: (max(0, end - _NEWEST), end) for place, end in ends.items()}
    return [record async for record in read_partitions(consumer, places, stretches=stretches)]
