"""Read a state changelog to its end, straight into a stage.

The end is a position, not the last record: a log may end in transaction markers, and positions pass them. A changelog
holds the next source offset beside the state, written in the same transaction, so the two cannot disagree.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import Struct

from pipeline.engine.interface import EngineError, NotAuthorizedError, PartitionLostError
from pipeline.engine.runtime import where
from pipeline.kafka import REFUSALS, refusal
from pipeline.stages.base import POSITION, STATE_FORMATS, read_position

# A poll that only passes a marker returns nothing, so it must not wait long.
_POLL_MS = 50
_FETCH_BYTES = 8 << 20


class Restored(Struct, frozen=True):
    """What a changelog held: the next source offset (None where nothing was ever committed), its format and size."""

    position: int | None
    state_format: int
    records: int
    seconds: float


async def restore(
    connection: Mapping[str, Any],
    topic: str,
    partition: int,
    apply: Callable[[bytes, bytes | None], None],
    *,
    committed_only: bool,
    patience: float = 30.0,
    start: Callable[[int, int], int] = min,
    on_progress: Callable[[int, int | None, int], None] | None = None,
) -> Restored:
    """Give every record of the changelog to ``apply``, oldest first; None as a value deletes the key.

    ``start`` is asked where to begin, between the log's first offset and its end; ``on_progress`` is told, once the
    records before an offset were given, of it, of the next source offset and of the format, as far as they were read.

    Raises:
        EngineError: ``state_unreadable`` (``apply`` raised: the state was written by something else), ``state_newer``
            (it has a format that came later).
        PartitionLostError: ``stuck`` (no progress for ``patience`` seconds).
        NotAuthorizedError: the changelog must not be read.
    """
    changelog = TopicPartition(topic, partition)
    reader = AIOKafkaConsumer(
        **connection,
        isolation_level="read_committed" if committed_only else "read_uncommitted",
        # With "latest", the default, a consumer without a group goes to the end as soon as it is assigned, and
        # seek_to_beginning() does not bring it back: recovery would read nothing.
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_partition_fetch_bytes=_FETCH_BYTES,
    )
    started = time.monotonic()
    try:
        await reader.start()
        reader.assign([changelog])
        end = (await reader.end_offsets([changelog]))[changelog]
        reader.seek(changelog, start((await reader.beginning_offsets([changelog]))[changelog], end))
        position, state_format, count = await _read_to(reader, changelog, end, apply, on_progress, patience=patience)
    except REFUSALS as error:
        raise NotAuthorizedError("not_authorized", refusal(type(error)(topic), "Read")) from error
    finally:
        await reader.stop()
    return Restored(position, state_format, count, time.monotonic() - started)


async def _read_to(
    reader: AIOKafkaConsumer,
    changelog: TopicPartition,
    end: int,
    apply: Callable[[bytes, bytes | None], None],
    on_progress: Callable[[int, int | None, int], None] | None,
    *,
    patience: float,
) -> tuple[int | None, int, int]:
    source_position: int | None = None
    state_format = 1
    count, reached, moved_at = 0, -1, time.monotonic()
    while (at := await asyncio.wait_for(reader.position(changelog), patience)) < end:
        if at > reached:
            reached, moved_at = at, time.monotonic()
        elif time.monotonic() - moved_at > patience:
            raise PartitionLostError(
                "stuck", f"no progress in {changelog} at offset {at} of {end} for {patience:.0f} s"
            )
        records = (await reader.getmany(changelog, timeout_ms=_POLL_MS)).get(changelog, ())
        count += len(records)
        try:
            for record in records:
                if record.key == POSITION:
                    source_position, state_format = read_position(record.value)
                else:
                    apply(record.key, record.value)
        except Exception as error:
            raise EngineError(
                "state_unreadable",
                f"{changelog} holds state that cannot be read, near offset {at} ({where(error)}). "
                "Was it written by a newer version, or by something else?",
            ) from error
        if on_progress is not None:
            on_progress(await reader.position(changelog), source_position, state_format)
        await asyncio.sleep(0)  # other partitions work meanwhile
    if state_format not in STATE_FORMATS:
        raise EngineError(
            "state_newer",
            f"{changelog} holds state of format {state_format}, which a newer version of Reknit wrote; this one reads "
            f"up to {STATE_FORMATS[-1]}. Run the newer version.",
        )
    return source_position, state_format, count
