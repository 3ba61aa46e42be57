"""Why a worker does not start, or ends. Each error carries a code and says what the operator can do."""

from __future__ import annotations

from typing import ClassVar

from pipeline.errors import Fault, ReknitError


class StartupError(ReknitError):
    """The worker cannot start with this configuration or this broker; nothing was read or written.

    Codes: ``port_taken``, ``port_refused``, ``topics_missing``, ``partitions_mismatch``, ``transactions_unsupported``,
    ``delivery_unknown``, ``state_dir_unusable``.
    """

    fault: ClassVar[Fault] = "caller"


class UpstreamChangedError(ReknitError):
    """An installed release of Faust, aiokafka or mode is not the one whose internals the engine overrides."""

    fault: ClassVar[Fault] = "us"


class EngineError(ReknitError):
    """A running worker cannot go on; the batch in flight is not committed and will be processed again.

    Codes: ``stalled`` (records wait and none is processed), ``state_unreadable``, ``message_too_large``,
    ``worker_failed``, and those of the subclasses.
    """

    fault: ClassVar[Fault] = "us"


class PartitionLostError(EngineError):
    """A partition cannot go on as it is, but may once it is opened anew: what was committed stands in its changelog.

    Codes: ``fenced`` (somebody took over its transactional id), ``stuck`` (a deadline was missed).
    """


class TopicChangedError(EngineError):
    """An input is not the one whose records were processed: ``position_beyond_end``."""

    fault: ClassVar[Fault] = "caller"


def beyond_end(topic: str, partition: int, position: int, end: int, changelog: str) -> TopicChangedError:
    return TopicChangedError(
        "position_beyond_end",
        f"{topic} partition {partition} ends at offset {end}, but it was processed up to {position}: was the topic "
        "made anew? What is kept of its sessions belongs to the former one. Start a pipeline of its own, with another "
        f"--prefix, or make {changelog} anew too.",
    )


class NotAuthorizedError(EngineError):
    """The brokers refuse what a worker needs to do; the message names the right."""

    fault: ClassVar[Fault] = "caller"


class EmbeddedBrokerError(ReknitError):
    """The embedded broker is not installed or does not start."""

    fault: ClassVar[Fault] = "caller"
