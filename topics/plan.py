"""What differs between the topics as declared and as a cluster has them. Pure: asking the cluster is somebody else's.

A difference is of one of four kinds. ``missing``: the topic is not there, and can be created. ``setting``: it can be
altered where it is. ``fixed``: it cannot, since the records are laid out by it (partitions) or it takes a reassignment
(replicas). ``unknown``: the broker says nothing of the setting, as small brokers may, and nothing can be done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import Struct, field

from topics.declarations import TOPICS, Topic, qualified

Kind: TypeAlias = Literal["missing", "setting", "fixed", "unknown"]

PARTITIONS = "partitions"
REPLICATION_FACTOR = "replication.factor"


class Wanted(Struct, frozen=True):
    """A topic as it is to be: its name on the broker, with prefix, and all of its settings."""

    name: str
    partitions: int
    replication_factor: int
    settings: dict[str, str]


class Found(Struct, frozen=True):
    """A topic as the cluster has it. ``overrides`` are the settings that were made on the topic itself."""

    name: str
    partitions: int
    replication_factor: int
    settings: dict[str, str]
    overrides: dict[str, str] = field(default_factory=dict)


class Difference(Struct, frozen=True):
    """One setting of one topic that is not as declared; values are Kafka's text."""

    topic: str
    setting: str
    wanted: str
    found: str
    kind: Kind


def wanted(
    *, prefix: str, partitions: int, replication_factor: int, topics: Sequence[Topic] = TOPICS
) -> tuple[Wanted, ...]:
    return tuple(
        Wanted(
            qualified(topic.name, prefix),
            partitions,
            replication_factor,
            {setting.name: setting.value for setting in topic.settings_on(replication_factor)},
        )
        for topic in topics
    )


def differences(topic: Wanted, found: Found | None) -> list[Difference]:
    """What is not as declared, in the order of the declaration; nothing for a topic that is as it should be."""
    if found is None:
        return [Difference(topic.name, "topic", "present", "absent", "missing")]
    layout = {
        PARTITIONS: (topic.partitions, found.partitions),
        REPLICATION_FACTOR: (topic.replication_factor, found.replication_factor),
    }
    fixed = [
        Difference(topic.name, setting, str(want), str(have), "fixed")
        for setting, (want, have) in layout.items()
        if want != have
    ]
    return fixed + _settings(topic, found)


def altered(topic: Wanted, found: Found) -> dict[str, str]:
    """All settings that the topic is to carry: Kafka replaces the whole set, so what others set stays in it."""
    return {**found.overrides, **topic.settings}


def by_topic(topics: Sequence[Wanted], found: Mapping[str, Found]) -> dict[str, list[Difference]]:
    return {topic.name: differences(topic, found.get(topic.name)) for topic in topics}


def _settings(topic: Wanted, found: Found) -> list[Difference]:
    differing = []
    for setting, want in topic.settings.items():
        have = found.settings.get(setting)
        if have is None:
            differing.append(Difference(topic.name, setting, want, "", "unknown"))
        elif _canonical(have) != _canonical(want):
            differing.append(Difference(topic.name, setting, want, have, "setting"))
    return differing


def _canonical(text: str) -> tuple[str, ...]:
    """Kafka keeps lists as they were written: ``compact,delete`` is ``delete, compact``. 0.10 is 0.1."""
    return tuple(sorted(_number(part.strip()) for part in text.split(",")))


def _number(text: str) -> str:
    try:
        return str(float(text))
    except ValueError:
        return text
