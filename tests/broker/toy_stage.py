"""A stage whose every output shows whether a record was lost, doubled, reordered or met wrong state."""

from __future__ import annotations

import time

from reknit.pipeline.errors import ReknitError
from reknit.pipeline.stages.base import Output, Record, Result, Stage, dead_letter

SOURCES = ("toy.first.v1", "toy.second.v1")
OUT = "toy.out.v1"
STATES = [source.replace(".v1", "-state.v1") for source in SOURCES]
TOPICS = [*SOURCES, *STATES, OUT, "pipeline.dead-letters.v1"]
POISON = b"poison"
HUGE = b"huge:"
SLOW = b"slow:"


class ToyStage(Stage):
    """Counts records per key; each output says source, offset and the key's count so far."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.state_topic = topic.replace(".v1", "-state.v1")
        self.partition = partition
        self.counts: dict[bytes, int] = {}

    def restore(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self.counts.pop(key, None)
        else:
            self.counts[key] = int(value)

    def process(self, records: list[Record]) -> Result:
        result = Result()
        for record in records:
            key, value = record.key or b"", record.value or b""
            count = self.counts[key] = self.counts.get(key, 0) + 1
            if value == POISON:
                # The count above is wrong by now: a worker that continues with this stage is detected.
                raise RuntimeError("a bug")
            body = b"%s:%d:%d:%d" % (self.topic.encode(), record.partition, record.offset, count)
            if value.startswith(HUGE):
                body += b":" + b"x" * int(value.removeprefix(HUGE))
            if value.startswith(SLOW):
                time.sleep(float(value.removeprefix(SLOW)))
            result.outputs.append(Output(OUT, record.key, body, (("seen", b"%d" % record.timestamp),)))
            result.changes[key] = b"%d" % count
        return result

    def refuse(self, record: Record, error: ReknitError) -> Result:
        return Result(outputs=[dead_letter(record, self.topic, error)])

    def levels(self) -> dict[str, int]:
        return {"toy_keys": len(self.counts)}
