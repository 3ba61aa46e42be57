"""The faults of a cluster for a pipeline: in its topics, and in the records that producers write to the inputs.

Each finding has a remedy. Everything here is a function of what was read; `reknit topics check` reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from aiokafka import ConsumerRecord
from msgspec import Struct

from reknit.pipeline.kafka.partitions import usual_partition
from reknit.topics.cluster import PARTITIONS, REPLICATION_FACTOR, Difference, Found

# Timestamps further ahead of this machine's clock are a wrong clock, and no delay of a request.
_AHEAD_MS: Final = 60_000
_MOST_NAMED: Final = 3


class Finding(Struct, frozen=True):
    """``error``: records are lost, wrongly placed or refused. ``warning``: something else is not as declared."""

    severity: Literal["error", "warning"]
    subject: str
    problem: str
    remedy: str

    def line(self) -> str:
        return f"{self.severity}: {self.subject}: {self.problem}; {self.remedy}"


def of_topics(differences: Iterable[Difference]) -> Iterator[Finding]:
    """Describe topics that are not as declared."""
    for each in differences:
        if each.kind == "missing":
            yield Finding("error", each.topic, "the topic does not exist", "run `reknit topics apply`")
        elif each.setting == PARTITIONS:
            problem = f"it has {each.found} partitions, {each.wanted} are configured"
            remedy = "set `partitions` to what the topics have, or create new topics under another prefix"
            yield Finding("warning", each.topic, problem, remedy)
        elif each.setting == REPLICATION_FACTOR:
            problem = f"it has {each.found} copies, {each.wanted} are configured"
            yield Finding("warning", each.topic, problem, "reassign its partitions with Kafka's own tools")
        elif each.kind == "setting":
            problem = f"{each.setting} is {each.found or 'not set'}, declared is {each.wanted}"
            yield Finding("error", each.topic, problem, "run `reknit topics apply --fix`")


def of_layout(topics: Iterable[Found]) -> Iterator[Finding]:
    """Find topics with different numbers of partitions: a worker owns the same partition of each."""
    counts: dict[int, list[str]] = {}
    for found in topics:
        counts.setdefault(found.partitions, []).append(found.name)
    if len(counts) > 1:
        listed = "; ".join(f"{count}: {', '.join(sorted(names))}" for count, names in sorted(counts.items()))
        remedy = "create all of them with the same number, under another prefix"
        yield Finding("error", "topics", f"their numbers of partitions differ: {listed}", remedy)


def of_records(topic: str, partitions: Sequence[int], records: Iterable[ConsumerRecord], now_ms: int) -> list[Finding]:
    """Describe what is wrong with records of an input.

    Args:
        topic: the topic's name on the broker.
        partitions: the numbers of its partitions.
        records: some of its records.
        now_ms: this machine's time, in milliseconds since the epoch.
    """
    count = 0
    misplaced: list[str] = []
    bad_keys: Counter[str] = Counter()
    ahead_ms = 0
    for record in records:
        count += 1
        ahead_ms = max(ahead_ms, record.timestamp - now_ms)
        try:
            session = record.key.decode() if record.key else ""
        except UnicodeDecodeError:
            bad_keys["not UTF-8"] += 1
            continue
        if not session:
            bad_keys["missing"] += 1
        elif usual_partition(session, list(partitions)) != record.partition:
            misplaced.append(f"{record.partition}/{record.offset}")
    return list(_findings(topic, count, misplaced, bad_keys, ahead_ms))


def _findings(
    topic: str, count: int, misplaced: Sequence[str], bad_keys: Mapping[str, int], ahead_ms: int
) -> Iterator[Finding]:
    if misplaced:
        named = ", ".join(misplaced[:_MOST_NAMED])
        problem = f"{len(misplaced)} of {count} records are in another partition than murmur2 of their key (at {named})"
        remedy = "set the producer's partitioner to Kafka's default (librdkafka: partitioner=murmur2_random)"
        yield Finding("error", topic, problem, remedy)
    for what, times in bad_keys.items():
        problem = f"the key of {times} of {count} records is {what}"
        yield Finding("error", topic, problem, "write the session's id in UTF-8 as the key")
    if ahead_ms > _AHEAD_MS:
        problem = f"its newest record is {ahead_ms / 1000:.0f} s ahead of this machine's clock"
        yield Finding("error", topic, problem, "synchronise the clocks of the brokers and of this machine (NTP)")
