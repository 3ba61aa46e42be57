"""The contract of the pipeline: its topics and their configuration. Records and headers are in modules of this package.

Imports only msgspec, and nothing else from Reknit. Every setting states why it differs from the broker's default.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct, structs

Direction: TypeAlias = Literal["in", "out", "internal"]

# All topics have the same number of partitions, because a session's key must meet its state at the same index
# everywhere. It cannot change later without moving sessions; 12 divides evenly over 1, 2, 3, 4, 6 and 12 workers.
DEFAULT_PARTITIONS = 12

_MIB = 1024 * 1024
DAY_MS = 24 * 60 * 60 * 1000

# Retention of turns, and of ended-session records: until the last readable record of the session has been deleted with
# its segment.
TURNS_DAYS = 30
MARKER_DAYS = TURNS_DAYS + 2

# Bytes of a record batch as the broker counts it, compressed. Below the first limit nothing is refused for its size
# alone. The second leaves space for additions to an input of that size: an envelope, or a dead letter's headers.
LARGEST_INPUT = 64 * _MIB
LARGEST_OUTPUT = 68 * _MIB
# A state record can hold a cut event of the largest input's size in addition to the rest of its session. The broker
# refuses requests above 100 MiB (socket.request.max.bytes).
LARGEST_STATE = 96 * _MIB


class Setting(Struct, frozen=True):
    """One topic setting: Kafka's name and value (text, as the broker stores it), and the reason for the value."""

    name: str
    value: str
    why: str


class Topic(Struct, frozen=True, kw_only=True):
    """One topic: its name without prefix, its direction, the content of a record, and the retention settings.

    ``content_type`` is the media type of a record's value; ``settings`` are those that do not depend on the cluster.
    """

    name: str
    direction: Direction
    summary: str
    content_type: str
    settings: tuple[Setting, ...]
    key: str = "The session's id, UTF-8."

    def settings_on(self, replication_factor: int) -> tuple[Setting, ...]:
        """Return all settings for a cluster that keeps ``replication_factor`` copies."""
        return (*self.settings, _in_sync(replication_factor))


# Prefix to the names of inputs: the topics with the records that a worker would have written to another pipeline's
# inputs.
RECORDED_PREFIX = "recorded."
# Separates a live pipeline's prefix from the name of its replay.
REPLAYS = "replay."


def qualified(name: str, prefix: str) -> str:
    """Return a topic's name on the broker: the prefix directly followed by the contract's name."""
    return prefix + name


def _in_sync(replication_factor: int) -> Setting:
    # Two of three: one broker may restart without stopping the writers, and acknowledged records survive the loss of
    # another one. With fewer copies, requiring more than one would stop the writers during a restart.
    needed = min(2, max(1, replication_factor - 1))
    return Setting("min.insync.replicas", str(needed), "Writers wait for this many copies, so one broker may be away.")


# The broker stores and serves batches as the producer compressed them.
_COMPRESSION = Setting(
    "compression.type", "producer", "The worker writes zstd; compressing again would cost the broker time for nothing."
)
_SEGMENT = Setting(
    "segment.ms", str(DAY_MS), "Deletion works on whole segments: no record outlives its retention by more than a day."
)


def _deleted(days: int, why: str, *, largest: int) -> tuple[Setting, ...]:
    """Settings of a log with deletion by age."""
    return (
        Setting("cleanup.policy", "delete", "Every record counts, not only the newest of its key."),
        Setting("retention.ms", str(days * DAY_MS), why),
        Setting("max.message.bytes", str(largest), "Histories carry images and documents; 1 MiB refuses them."),
        _COMPRESSION,
        _SEGMENT,
    )


# A wrong clock at one of many producers must neither delete its records immediately nor keep them forever. In addition,
# a replay of a time range then refers to the time at which the broker received the records.
_BROKERS_TIME = Setting(
    "message.timestamp.type", "LogAppendTime", "Age is counted by one clock, not by the producers'."
)


# How long a changelog keeps the tombstone of a deleted record.
DELETIONS_KEPT_MS = 7 * DAY_MS

# A changelog is read from start to end whenever its partition moves, so it is kept short.
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
        "A forgotten session is removed from the log within this time, also on a topic with few writes.",
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
        summary="The one log that orders a session: turns, restored and rewound histories, requests for a request.",
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
        settings=_deleted(
            7, "A sender that was away longer would send requests that no agent waits for.", largest=LARGEST_OUTPUT
        ),
    ),
    Topic(
        name=SESSION_ITEMS,
        direction="out",
        summary="Display records: items started, grown, completed and withdrawn, results, errors.",
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
# Only in replays: the plan of the replay, next to its outputs.
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

# Topics of a pipeline that reads another one's inputs. It has no inputs, which distinguishes it from a live pipeline.
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
    """Return the topics of a pipeline, by its prefix and that of the inputs that it reads (None: its own inputs)."""
    return TOPICS if source_prefix in {None, prefix} else TOPICS_BESIDE


BY_NAME: dict[str, Topic] = {topic.name: topic for topic in TOPICS}
# The topics that a worker reads.
INPUTS = (AGENT_TURNS, PROVIDER_EVENTS)


def name_of(topic: str, prefix: str, source_prefix: str | None) -> str:
    """Return the name of a pipeline's topic on the broker; its inputs may belong to another pipeline."""
    if source_prefix is None or BY_NAME[topic].direction != "in":
        return qualified(topic, prefix)
    return qualified(topic, source_prefix)
