"""The required cluster state of a pipeline: the topics as declared, and the least rights of each role.

A difference between a topic as declared and as it is on the cluster has one of four kinds. ``missing``: the topic does
not exist and can be created. ``setting``: it can be altered in place. ``fixed``: it cannot be altered, because the
records are laid out by it (partitions) or because it takes a reassignment (replicas). ``unknown``: the broker does not
report the setting, as small brokers may, so it cannot be compared.

Roles are a worker, a viewer, a server of screens without and with input, an operator, producers of inputs, consumers
of outputs. Measured with Apache Kafka's own
authorizer: Read and Write imply Describe, and an idempotent producer needs nothing in addition to Write on its topic.

The module is pure: its callers query the cluster and grant the rights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from reknit.topics import (
    AGENT_TURNS,
    DEAD_LETTERS,
    EVENTS_STATE,
    REPLAYS,
    SESSION_ITEMS,
    TOPICS,
    Topic,
    name_of,
    qualified,
    topics_of,
)

PARTITIONS = "partitions"
REPLICATION_FACTOR = "replication.factor"


class Wanted(Struct, frozen=True):
    """A topic as declared: its name on the broker, with prefix, and all of its settings."""

    name: str
    partitions: int
    replication_factor: int
    settings: dict[str, str]


class Found(Struct, frozen=True):
    """A topic as it is on the cluster. ``overrides`` are the settings that were made on the topic itself."""

    name: str
    partitions: int
    replication_factor: int
    settings: dict[str, str]
    overrides: dict[str, str] = field(default_factory=dict)


class Difference(Struct, frozen=True):
    """One setting of one topic that differs from the declaration; values are Kafka's text."""

    topic: str
    setting: str
    wanted: str
    found: str
    kind: Literal["missing", "setting", "fixed", "unknown"]


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
    """Return the differences in the order of the declaration; empty if the topic is as declared."""
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
    """Return all settings to write to the topic. Kafka replaces the whole set, so foreign overrides are included."""
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
    """Return a form for comparison.

    Kafka stores values as written: ``compact,delete`` equals ``delete, compact``, 0.10 0.1.
    """
    return tuple(sorted(_number(part.strip()) for part in text.split(",")))


def _number(text: str) -> str:
    try:
        return str(float(text))
    except ValueError:
        return text


# The rights of each role.

Kind: TypeAlias = Literal["topic", "group", "transactionalId"]

_OPTIONS: dict[Kind, str] = {"topic": "--topic", "group": "--group", "transactionalId": "--transactional-id"}


class Right(Struct, frozen=True):
    """Permitted operations on a resource, or if ``prefixed``, on all resources whose names begin with ``name``."""

    kind: Kind
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False

    @property
    def pattern(self) -> str:
        """Kafka's resource pattern type."""
        return "prefixed" if self.prefixed else "literal"


class Role(Struct, frozen=True):
    """A user and its rights; ``user`` is a name that both Kafka and Kubernetes accept."""

    user: str
    rights: tuple[Right, ...]


def roles(prefix: str, source_prefix: str | None = None) -> Iterator[Role]:
    """Return the roles of the pipeline with this prefix.

    ``source_prefix`` is that of another pipeline whose inputs it reads.
    """
    topics = topics_of(prefix, source_prefix)
    group = f"{prefix}reknit"
    yield _role(prefix, "worker", *_worker_on_topics(prefix, source_prefix), *_worker_beside(group))
    for topic in topics:
        name, short = qualified(topic.name, prefix), re.sub(r"\.v\d+$", "", topic.name)
        if topic.direction == "in":
            yield _role(prefix, f"producer-{short}", Right("topic", name, ("Write",)))
        elif topic.direction == "out":
            user = f"consumer-{short}"
            group_of_it = Right("group", _user(prefix, user), ("Read",), prefixed=True)
            yield _role(prefix, user, Right("topic", name, ("Read",)), group_of_it)
    yield _role(prefix, "viewer", *_viewer(prefix, source_prefix))
    yield _role(prefix, "screens", *_screens(prefix, source_prefix, ("Read",)))
    if topics is TOPICS:  # inputs of another pipeline are only read
        yield _role(prefix, "screens-input", *_screens(prefix, source_prefix, ("Read", "Write")))
    yield _role(prefix, "operator", *_operator_on_topics(prefix, topics))
    if topics is TOPICS:
        yield _role(prefix, "replay", *_replay(prefix))


def _worker_on_topics(prefix: str, source_prefix: str | None) -> Iterator[Right]:
    if topics_of(prefix, source_prefix) is not TOPICS:
        for name in [topic.name for topic in TOPICS if topic.direction == "in"]:
            yield Right("topic", qualified(name, source_prefix or ""), ("Read",))
            yield Right("topic", qualified(name, prefix), ("Describe",))  # to check that the topic does not exist
    for topic in topics_of(prefix, source_prefix):
        # The worker also writes to the inputs: recorded turns, policies.
        operations = ("Write",) if topic.direction == "out" else ("Read", "Write")
        yield Right("topic", qualified(topic.name, prefix), operations)


def _operator_on_topics(prefix: str, topics: Sequence[Topic]) -> Iterator[Right]:
    """Yield the rights to inspect and forget sessions, and to retry or drop dead letters (with a note in their topic).

    To report when a session is forgotten, an operator needs the group's offsets. To report how long records with its
    data remain, it needs the settings of topics.
    """
    for topic in topics:
        operations = ("Read", "Write") if topic.name in {AGENT_TURNS, DEAD_LETTERS} else ("Read",)
        yield Right("topic", qualified(topic.name, prefix), (*operations, "DescribeConfigs"))
    yield Right("group", f"{prefix}reknit", ("Describe",))
    if topics is TOPICS:  # a replay may contain data of a session to forget
        yield Right("topic", f"{prefix}{REPLAYS}", ("Read", "Write", "Delete", "DescribeConfigs"), prefixed=True)
        yield Right("group", f"{prefix}{REPLAYS}", ("Delete",), prefixed=True)


def _viewer(prefix: str, source_prefix: str | None) -> Iterator[Right]:
    """Yield the rights to show sessions and the outputs of their replays.

    The viewer reads the group's offsets to show the progress of the worker. To retry dead letters it needs an
    operator's rights.
    """
    for topic in TOPICS:
        if topic.name != EVENTS_STATE:
            yield Right("topic", name_of(topic.name, prefix, source_prefix), ("Read",))
    yield Right("topic", f"{prefix}{REPLAYS}", ("Read",), prefixed=True)
    yield Right("group", f"{prefix}reknit", ("Describe",))


def _screens(prefix: str, source_prefix: str | None, turns: tuple[str, ...]) -> Iterator[Right]:
    """Yield the rights of ``reknit screens``, which reads without a group; ``turns`` are those on the turns."""
    yield Right("topic", qualified(SESSION_ITEMS, prefix), ("Read",))
    yield Right("topic", name_of(AGENT_TURNS, prefix, source_prefix), turns)


def _replay(prefix: str) -> Iterator[Right]:
    """Yield the rights to replay inputs of the pipeline and to compare results; a replay writes to its own topics."""
    begins = f"{prefix}{REPLAYS}"
    yield from (
        Right("topic", qualified(topic.name, prefix), ("Read",)) for topic in TOPICS if topic.name != EVENTS_STATE
    )
    operations = ("Create", "Read", "Write", "Delete", "DescribeConfigs")
    yield Right("topic", begins, operations, prefixed=True)
    yield Right("group", begins, ("Read", "Delete"), prefixed=True)
    yield Right("transactionalId", begins, ("Write",), prefixed=True)


def _worker_beside(group: str) -> Iterator[Right]:
    yield Right("group", group, ("Read",))
    yield Right("transactionalId", f"{group}-", ("Write",), prefixed=True)


def _role(prefix: str, name: str, *rights: Right) -> Role:
    return Role(_user(prefix, name), rights)


def _user(prefix: str, name: str) -> str:
    # Kubernetes names consist of lower-case characters, digits and hyphens.
    return re.sub(r"[^a-z0-9]+", "-", f"{prefix}reknit-{name}".lower()).strip("-")


def kafka_acls(role: Role, bootstrap_servers: str) -> Iterator[str]:
    """Return the ``kafka-acls.sh`` lines that give a role its rights."""
    for right in role.rights:
        operations = " ".join(f"--operation {operation}" for operation in right.operations)
        resource = f"{_OPTIONS[right.kind]} '{right.name}' --resource-pattern-type {right.pattern}"
        who = f"--allow-principal User:{role.user}"
        yield f"kafka-acls.sh --bootstrap-server {bootstrap_servers} --add {who} {operations} {resource}"


def kafka_user(role: Role, cluster: str) -> dict[str, Any]:
    """Return a role as a ``KafkaUser`` of Strimzi; ``cluster`` is the name of its ``Kafka`` resource."""
    acls = [
        {
            "resource": {
                "type": right.kind,
                "name": right.name,
                "patternType": "prefix" if right.prefixed else "literal",
            },
            "operations": list(right.operations),
        }
        for right in role.rights
    ]
    return {
        "apiVersion": "kafka.strimzi.io/v1",
        "kind": "KafkaUser",
        "metadata": {"name": role.user, "labels": {"strimzi.io/cluster": cluster}},
        "spec": {
            "authentication": {"type": "scram-sha-512"},
            "authorization": {"type": "simple", "acls": acls},
        },
    }
