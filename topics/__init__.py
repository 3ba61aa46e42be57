"""The contract of the pipeline: its topics and how each is kept, with their records and headers beside this.

Imports msgspec and nothing else of ours. Every setting says why it is not the broker's default.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, structs

Direction: TypeAlias = Literal["in", "out", "internal"]

# All topics have one number of partitions, since a session's key must meet its state at the same index everywhere.
# It cannot change later without moving sessions; 12 divides evenly over 1, 2, 3, 4, 6 and 12 workers.
DEFAULT_PARTITIONS = 12

_MIB = 1024 * 1024
DAY_MS = 24 * 60 * 60 * 1000

# How long turns are kept, and how long it is remembered which sessions expired or were forgotten: until the last record
# that can still be read of them is gone, with its segment.
TURNS_DAYS = 30
MARKER_DAYS = TURNS_DAYS + 2

# Bytes of a record batch as the broker counts it, compressed. Nothing is refused for its size alone below the first;
# the second leaves room for what is added around an input of that size: an envelope, or a dead letter's headers.
LARGEST_INPUT = 64 * _MIB
LARGEST_OUTPUT = 68 * _MIB
# A state record can hold a cut event of the largest input's size beside what its session had already. The broker
# refuses requests above 100 MiB (socket.request.max.bytes).
LARGEST_STATE = 96 * _MIB


class Setting(Struct, frozen=True):
    """One topic setting: Kafka's name and value (text, as the broker keeps it), and the reason for the value."""

    name: str
    value: str
    why: str


class Topic(Struct, frozen=True, kw_only=True):
    """One topic: its name without prefix, who writes it, what a record is, and how records are kept.

    ``content_type`` is the media type of a record's value, ``settings`` what does not depend on the cluster.
    """

    name: str
    direction: Direction
    summary: str
    content_type: str
    settings: tuple[Setting, ...]
    key: str = "The session's id, UTF-8."

    def settings_on(self, replication_factor: int) -> tuple[Setting, ...]:
        """All settings for a cluster that keeps ``replication_factor`` copies."""
        return (*self.settings, _in_sync(replication_factor))


# Before the names of inputs: what a worker that reads another pipeline's inputs would have written to them.
RECORDED_PREFIX = "recorded."
# Between a live pipeline's prefix and the name of a replay of it.
REPLAYS = "replay."


def qualified(name: str, prefix: str) -> str:
    """A topic's name on the broker: the prefix stands directly before the contract's name."""
    return prefix + name


def _in_sync(replication_factor: int) -> Setting:
    # Two of three: one broker may restart without stopping the writers, and what was acknowledged survives the loss
    # of another. With fewer copies, only one can be asked for without that.
    needed = min(2, max(1, replication_factor - 1))
    return Setting("min.insync.replicas", str(needed), "Writers wait for this many copies, so one broker may be away.")


# What a producer compressed is stored and served as it came.
_COMPRESSION = Setting(
    "compression.type", "producer", "The worker writes zstd; compressing again would cost the broker time for nothing."
)
_SEGMENT = Setting(
    "segment.ms", str(DAY_MS), "Deletion works on whole segments: no record outlives its retention by more than a day."
)


def _deleted(days: int, why: str, *, largest: int) -> tuple[Setting, ...]:
    """A log that forgets by age."""
    return (
        Setting("cleanup.policy", "delete", "Every record counts, not only the newest of its key."),
        Setting("retention.ms", str(days * DAY_MS), why),
        Setting("max.message.bytes", str(largest), "Histories carry images and documents; 1 MiB refuses them."),
        _COMPRESSION,
        _SEGMENT,
    )


# A clock that is wrong at one of many producers must neither delete its records at once nor keep them for ever, and a
# replay of a stretch of time means what the broker saw then.
_BROKERS_TIME = Setting(
    "message.timestamp.type", "LogAppendTime", "Age is counted by one clock, not by the producers'."
)


# How long a changelog tells of a deletion.
DELETIONS_KEPT_MS = 7 * DAY_MS

# The changelogs are read from start to end whenever a partition moves: they are kept short.
_COMPACTED = (
    Setting("cleanup.policy", "compact", "State: only the newest record of a key counts."),
    Setting("max.message.bytes", str(LARGEST_STATE), "A session's state can hold the tail of a cut event of 64 MiB."),
    Setting("min.cleanable.dirty.ratio", "0.1", "A restart reads the log to its end; at the default, half is stale."),
    Setting(
        "delete.retention.ms",
        str(DELETIONS_KEPT_MS),
        "A worker that kept its state on disk and was away for less than this still sees what was deleted.",
    ),
    Setting(
        "max.compaction.lag.ms",
        str(7 * DAY_MS),
        "A forgotten session is gone from the log within this time, also on a topic that is hardly written.",
    ),
    _COMPRESSION,
    _SEGMENT,
)

_REPLAY = "How far back a replay can start."

AGENT_TURNS = "agent.turns.v1"
PROVIDER_EVENTS = "provider.events.v1"
PROVIDER_REQUESTS = "provider.requests.v1"
SESSION_ITEMS = "session.items.v1"
HISTORY_FIXES = "history.fixes.v1"
DEAD_LETTERS = "pipeline.dead-letters.v1"
TURNS_STATE = "pipeline.turns-state.v1"
EVENTS_STATE = "pipeline.events-state.v1"

TOPICS: tuple[Topic, ...] = (
    Topic(
        name=AGENT_TURNS,
        direction="in",
        summary="The one log that orders a session: what was said, restored, rewound and asked for.",
        content_type="application/json",
        settings=(*_deleted(TURNS_DAYS, _REPLAY, largest=LARGEST_INPUT), _BROKERS_TIME),
    ),
    Topic(
        name=PROVIDER_EVENTS,
        direction="in",
        summary="A provider's stream events as received, one or several complete events separated by newlines.",
        content_type="application/octet-stream",
        settings=(
            *_deleted(7, _REPLAY + " The bulkiest topic: one record for every few tokens.", largest=LARGEST_INPUT),
            _BROKERS_TIME,
        ),
    ),
    Topic(
        name=PROVIDER_REQUESTS,
        direction="out",
        summary="Request bodies that the provider accepts, ready to POST or to write to stdin.",
        content_type="application/octet-stream",
        settings=_deleted(7, "A sender that was away longer would send what nobody waits for.", largest=LARGEST_OUTPUT),
    ),
    Topic(
        name=SESSION_ITEMS,
        direction="out",
        summary="What a screen shows: items started, grown, completed and withdrawn, results, errors.",
        content_type="application/json",
        settings=_deleted(
            7, "A screen that opens later is filled from here; a replay makes older ones again.", largest=LARGEST_OUTPUT
        ),
    ),
    Topic(
        name=HISTORY_FIXES,
        direction="out",
        summary="One record for every change that was made to a history: the raw data of every dashboard.",
        content_type="application/json",
        settings=_deleted(90, "Long enough to compare an agent's release with the one before.", largest=LARGEST_OUTPUT),
    ),
    Topic(
        name=DEAD_LETTERS,
        direction="out",
        summary="Records that could not be processed, unchanged, with headers that say why.",
        content_type="application/octet-stream",
        settings=_deleted(30, "As long as the inputs they came from can be replayed.", largest=LARGEST_OUTPUT),
    ),
    Topic(
        name=TURNS_STATE,
        direction="internal",
        summary="State of the history side, with the next source offset. Not part of the contract.",
        content_type="application/octet-stream",
        key="The session's id with a segment number, or the partition's position; bytes of our own.",
        settings=_COMPACTED,
    ),
    Topic(
        name=EVENTS_STATE,
        direction="internal",
        summary="State of the stream side, with the next source offset. Not part of the contract.",
        content_type="application/octet-stream",
        key="The session's id, or the partition's position; bytes of our own.",
        settings=_COMPACTED,
    ),
)
# Of a replay alone: what it was to do, beside what it made.
REPLAY_PLAN = Topic(
    name="pipeline.replay.v1",
    direction="internal",
    summary="The plan of a replay: its first record. Then digests of the sessions that were forgotten since, as keys.",
    content_type="application/json",
    key="The replay's name.",
    settings=(
        Setting("cleanup.policy", "delete", "The first record counts, whoever comes second."),
        Setting("retention.ms", "-1", "It says what the outputs cover, as long as there are any."),
        Setting("max.message.bytes", str(LARGEST_OUTPUT), "A plan names every session that was chosen by a range."),
        _COMPRESSION,
    ),
)

# Those of a pipeline that reads another one's inputs: it has none, which is how a live one is told from it.
TOPICS_BESIDE: tuple[Topic, ...] = tuple(
    structs.replace(
        topic,
        name=RECORDED_PREFIX + topic.name,
        direction="out",
        summary=f"What would have been written to {topic.name}, had it not been another pipeline's.",
    )
    if topic.direction == "in"
    else topic
    for topic in TOPICS
)


def topics_of(prefix: str, source_prefix: str | None) -> tuple[Topic, ...]:
    """The topics of a pipeline, by its prefix and that of the inputs that it reads; None is its own."""
    return TOPICS if source_prefix in {None, prefix} else TOPICS_BESIDE


BY_NAME: dict[str, Topic] = {topic.name: topic for topic in TOPICS}


def name_of(topic: str, prefix: str, source_prefix: str | None) -> str:
    """What a topic of a pipeline is called on the broker; its inputs may be those of another pipeline."""
    if source_prefix is None or BY_NAME[topic].direction != "in":
        return qualified(topic, prefix)
    return qualified(topic, source_prefix)
