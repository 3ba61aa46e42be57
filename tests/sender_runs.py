"""Run a sender without a broker: a test publishes requests and reads the events that the sender writes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import UNSET, Struct

from reknit.pipeline.client import Place
from reknit.pipeline.client.consumers import Assignment, Batch, Mark, Request
from reknit.pipeline.client.sender import Answer, Sender
from reknit.topics import PROVIDER_REQUESTS
from reknit.topics.headers import RequestHeaders

_SHA = "0" * 64


def request(
    request_id,
    session="s",
    *,
    offset,
    partition=0,
    supersedes=None,
    reason="turn",
    body=b"{}",
    target="anthropic",
    raw_headers=(),
):
    headers = RequestHeaders(
        request_id=request_id,
        target=target,
        turn=1,
        fixes=0,
        body_sha256=_SHA,
        prefix_bytes=0,
        reknit_version="1",
        model="m",
        reason=reason,
        supersedes=UNSET if supersedes is None else supersedes,
    )
    place = Place(PROVIDER_REQUESTS, partition, offset)
    return Request(session=session, body=body, headers=headers, raw_headers=raw_headers, place=place)


def withdrawal(request_id, session="s", *, offset, supersedes):
    return request(request_id, session, offset=offset, supersedes=supersedes, reason="answered", body=None)


class Requests:
    """Replaces a group's reader: ``put`` publishes a batch, ``assign`` rebalances the group."""

    def __init__(self) -> None:
        self._batches: asyncio.Queue[Batch | Exception] = asyncio.Queue()
        self.marks: dict[int, Mark] = {}
        self.committed = asyncio.Condition()
        self.in_group = True
        self._on_revoked = None

    def put(self, *records) -> None:
        self._batches.put_nowait(Batch(list(records)))

    def fail(self, error: Exception) -> None:
        self._batches.put_nowait(error)

    async def assign(self, *partitions, lost=(), records=()) -> None:
        """Rebalance the group: partitions by number, the lost ones, and the first records read of the new ones."""
        if self._on_revoked is not None:
            await self._on_revoked()
        marks = {number: self.marks.get(number) for number in partitions}
        self._batches.put_nowait(Batch(list(records), Assignment(marks, frozenset(lost))))

    async def batches(self, *, has_room, on_revoked) -> AsyncIterator[Batch]:
        self._on_revoked = on_revoked
        while True:
            batch = await self._batches.get()
            if isinstance(batch, Exception):
                raise batch
            yield batch

    async def completed(self, found):
        return found

    async def commit_marks(self, marks) -> bool:
        if not self.in_group:
            return False
        async with self.committed:
            self.marks |= marks
            self.committed.notify_all()
        return True

    async def until_committed(self, offset: int, partition: int = 0) -> None:
        """Wait until everything before an offset is committed."""
        async with asyncio.timeout(120), self.committed:
            await self.committed.wait_for(lambda: partition in self.marks and self.marks[partition].offset >= offset)


class Events:
    """Replaces the writer of events: stores pieces by run with their status, and the ends of runs."""

    source = "anthropic"

    def __init__(self) -> None:
        self.written: list[tuple[str, str, object]] = []
        self.pieces: list[tuple[str, bytes, int | None]] = []
        self.ended: asyncio.Queue[tuple[str, str, str]] = asyncio.Queue()
        self.ending = asyncio.Semaphore(0)
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.fault: Exception | None = None
        self.traces: list[dict[str, str]] = []

    async def feed(self, session, data, *, run, framing, request_id, status, trace) -> None:
        if self.fault is not None:
            raise self.fault
        assert request_id == run
        self.pieces.append((run, data, status))
        self.traces.append(trace)

    async def end_run(self, session, *, run, reason, trace) -> None:
        self.traces.append(trace)
        self.ending.release()
        await self.may_end.wait()
        self.ended.put_nowait((session, run, reason))

    async def flush(self) -> None:
        """Do nothing: ``feed`` stores pieces immediately."""

    def of(self, run: str) -> bytes:
        return b"".join(data for named, data, _ in self.pieces if named == run)

    async def next_end(self) -> tuple[str, str, str]:
        return await asyncio.wait_for(self.ended.get(), 20)


class Route:
    """Answers each request with the next of its ``answers``: pieces, with errors among them that are raised."""

    framing = "bytes"
    url = "https://api.example.com/v1/messages?key=secret"

    def __init__(self, *answers, default=None) -> None:
        self.answers = list(answers)
        self.default = default
        self.asked: list[str] = []
        self.traces: list[dict[str, str]] = []
        self.arrived = asyncio.Semaphore(0)
        self.closed: list[str] = []

    async def answer(self, request):
        self.asked.append(request.headers.request_id)
        self.traces.append(request.trace)
        answer = self.answers.pop(0) if self.answers else self.default
        self.arrived.release()
        try:
            for piece in answer:
                if isinstance(piece, Exception):
                    raise piece
                if isinstance(piece, asyncio.Event):
                    await piece.wait()
                    continue
                yield piece if isinstance(piece, Answer) else Answer(piece, 200)
        finally:
            self.closed.append(request.headers.request_id)


def anthropic(*, end=True, text="hi", message_id="m") -> list[bytes]:
    """The events of a streamed answer, each as bytes; ``end=False`` leaves out the last one."""
    message = {"id": message_id, "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    events = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    found = [b"event: %b\ndata: %b\n\n" % (e["type"].encode(), json.dumps(e).encode()) for e in events]
    return found if end else found[:-1]


class Sent(Struct):
    """A running sender."""

    sender: Sender
    requests: Requests
    events: Events
    route: Route
    waits: list[float]
    task: asyncio.Task


async def until(holds) -> None:
    """Poll until a condition holds."""
    async with asyncio.timeout(120):
        while not holds():  # noqa: ASYNC110  the tasks under test set no event
            await asyncio.sleep(0)


@asynccontextmanager
async def sending(*answers, events=None, requests=None, route=None, default=None, assigned=(0,), **options):
    """A running sender. Its pauses between attempts take no time and are recorded."""
    requests, events = requests or Requests(), events or Events()
    route = route or Route(*answers, default=default)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    sender = Sender(requests, events, route, target="anthropic", sleep=sleep, **options)
    await requests.assign(*assigned)
    task = asyncio.create_task(sender.run())
    try:
        yield Sent(sender, requests, events, route, waits, task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
