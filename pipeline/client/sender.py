"""The reference sender: send published requests to a provider or a program, and publish the answers as events.

It shows what a sender must do, and serves demos and small fleets. Requests of one session are sent one after the other,
requests of different sessions concurrently. A request that a newer one supersedes, or that the session's log has
answered, is not sent; if it is being sent, it is broken off.

**After a failure** one function decides (``Sender._end_of``):

- *Kafka refuses or does not answer, or the route cannot work until a person helps:* ``run`` raises. Requests that are
  not done are sent by the next sender.
- *The provider refuses the request:* the refusal is published whole with its status. The request is done. A redirect is
  a refusal; none is followed.
- *No complete answer, and nothing published:* the request is sent again, after the pause that the provider asks for or
  after growing pauses. After the last attempt the request is done.
- *Part of an answer is published:* the run ends with the reason, and its open items become incomplete. The request is
  done. Another attempt would cost another answer and show it next to the first.

**Requests that may be sent twice.** A request is done when its answer has ended, and each one is committed at once
(``progress``). After a kill, the next sender sends again the requests that were being sent, and a request whose end was
published just before the kill. It uses the same run, which the stream side takes for another attempt: open items of the
first attempt are retracted, but a complete answer is there twice. In a rebalance, publishing stops until the new
assignment is known; requests of lost partitions are broken off here and sent again by their new owner. A process that
is frozen for longer than its session in the group (10 s) may publish events into the run of its successor.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final

from msgspec import Struct

from reknit.pipeline.client import Events
from reknit.pipeline.client.answers import AnswerReader
from reknit.pipeline.client.consumers import Assignment, Batch, Mark, Request, Requests
from reknit.pipeline.client.progress import Progress
from reknit.pipeline.client.retries import LONGEST_WAIT, pause_after
from reknit.pipeline.client.routes import REFUSED_FROM, Answer, Http, Program, Route, RouteError, TryAgainError
from reknit.pipeline.errors import BrokerError, InputError, ReknitError, error_name
from reknit.pipeline.registry import find_source
from reknit.pipeline.tracing.calls import Call, OpenCall, Tracing

__all__ = ["Answer", "Http", "Program", "Route", "RouteError", "Sender", "TryAgainError"]

# Waiting bodies are in memory. Above this size no more are read.
_MOST_WAITING_BYTES: Final = 256 * 1024 * 1024
# An at-least-once worker may publish a request twice, with one id. The last ids are remembered.
_MOST_IDS: Final = 10_000
# A rebalance waits this long for records that are being written.
_LAST_RECORDS_SECONDS: Final = 10.0
# A connection may stay open this long after the final event.
_AFTER_END_SECONDS: Final = 5.0
# A stop waits this long for the last commit.
_LAST_COMMIT_SECONDS: Final = 5.0

log = logging.getLogger("reknit.send")


class _Pending(Struct):
    """A request to send, and the progress of its partition when it was read."""

    request: Request
    progress: Progress


class _Session:
    """A session's requests: those that wait, in order, and the current one, with the reason if it is broken off."""

    def __init__(self) -> None:
        self.waiting: deque[_Pending] = deque()
        self.current: _Pending | None = None
        self.sending: asyncio.Task[_End] | None = None
        self.broken_off = ""
        self.is_running = False

    def break_off(self, reason: str) -> None:
        """Cancel the current request, unless its answer has ended already."""
        if self.sending is not None and not self.sending.done():
            self.broken_off = reason
            self.sending.cancel()


# The status by which the worker takes an error inside a stream for a refusal.
_REFUSED_IN_STREAM = 400


class _Attempt(Struct):
    """One attempt: its answer, bytes not published yet, and whether any were."""

    reader: AnswerReader
    status: int | None = None
    refusal: Answer | None = None
    held: bytes = b""
    is_published: bool = False

    @property
    def shown_status(self) -> int | None:
        """The status of the next bytes: a refusal inside the stream has one of its own."""
        failure = self.reader.failure
        return _REFUSED_IN_STREAM if failure is not None and failure.is_refusal else self.status


class _End(Struct, frozen=True):
    """The end of a run: the reason, and the rest of the answer."""

    reason: str
    data: bytes = b""
    status: int | None = None


class _Gate:
    """Blocks writes during a rebalance: ``async with gate``."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._inside = 0

    async def __aenter__(self) -> None:
        while not self._opened.is_set():
            await self._opened.wait()
        self._inside += 1
        self._idle.clear()

    async def __aexit__(self, *_error: object) -> None:
        self._inside -= 1
        if not self._inside:
            self._idle.set()

    def open(self) -> None:
        self._opened.set()

    async def close(self) -> None:
        """Block new writes; return when no write is in progress."""
        self._opened.clear()
        await self._idle.wait()


class Sender:
    """Sends the requests for one target.

    Args:
        requests: the published requests, read in a group.
        events: the topic for answers. Its source defines the final event of an answer.
        route: sends a request and yields the answer.
        target: requests for other targets are skipped.
        rate: maximum requests per second; None: no limit.
        attempts: maximum attempts per request.
        longest_wait: maximum seconds to wait for a provider's ``retry-after``.
        at_once: maximum requests at the same time.
        sleep: waits between attempts.
        tracing: gets a call for each attempt.
    """

    def __init__(
        self,
        requests: Requests,
        events: Events,
        route: Route,
        *,
        target: str,
        rate: float | None = None,
        attempts: int = 6,
        longest_wait: float = LONGEST_WAIT,
        at_once: int = 100,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        tracing: Tracing | None = None,
    ) -> None:
        self._requests = requests
        self._events = events
        self._route = route
        self._source = find_source(events.source)
        # An API's stream. A program is different: it may still work after its final event.
        self._is_stream = route.framing == "bytes"
        self._target = target
        self._interval = 0.0 if rate is None else 1 / rate
        self._attempts = attempts
        self._longest_wait = longest_wait
        self._slots = asyncio.Semaphore(at_once)
        self._sleep = sleep
        self._tracing = tracing or Tracing()
        self._free_at = 0.0
        self._sessions: dict[str, _Session] = {}
        self._progress: dict[int, Progress] = {}
        self._waiting_bytes = 0
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._gate = _Gate()
        self._is_done = asyncio.Event()

    async def run(self) -> None:
        """Send until cancelled. Requests in progress are broken off then, and sent by the next sender.

        Raises:
            BrokerDownError: no broker answers.
            BrokerError: the cluster refuses.
            RouteError: no request can be answered until a person helps.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._commit_what_is_done())
                async for batch in self._requests.batches(has_room=self._has_room, on_revoked=self._stop_publishing):
                    self._take_batch(batch)
                    for name, session in self._sessions.items():
                        if not session.is_running:
                            session.is_running = True
                            tasks.create_task(self._work(name, session))
        except BaseExceptionGroup as failures:
            # The first failure cancelled the other tasks. Further ones have the same cause.
            raise _first(failures) from None
        finally:
            with suppress(BrokerError, TimeoutError):
                await asyncio.wait_for(self._commit(), _LAST_COMMIT_SECONDS)

    # Reading. Nothing here awaits, so that a batch is applied before the next request is sent.

    def _has_room(self) -> bool:
        return self._waiting_bytes < _MOST_WAITING_BYTES

    async def _stop_publishing(self) -> None:
        """Stop publishing until the new assignment is known, and wait for records that are being written."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_RECORDS_SECONDS):
                await self._gate.close()
                await self._events.flush()

    def _take_batch(self, batch: Batch[Request]) -> None:
        if batch.assignment is not None:
            self._take_assignment(batch.assignment)
        for request in batch.records:
            progress = self._progress.setdefault(request.place.partition, Progress())
            if progress.begin(request.place.offset):
                self._take_request(_Pending(request, progress))
        self._is_done.set()  # skipped records are done

    def _take_assignment(self, found: Assignment) -> None:
        kept = found.marks.keys() - found.lost
        for number in self._progress.keys() - kept:
            del self._progress[number]
        for number in found.marks.keys() - self._progress.keys():
            mark = found.marks[number]
            self._progress[number] = Progress() if mark is None else Progress(mark.offset, mark.text)
        for session in self._sessions.values():
            self._leave_moved(session)
        self._gate.open()
        self._is_done.set()  # the rebalance may have prevented a commit

    def _leave_moved(self, session: _Session) -> None:
        """Drop a session's requests whose partition has moved to another sender."""
        if session.current is not None and not self._is_ours(session.current):
            self._recent.pop(session.current.request.headers.request_id, None)
            session.break_off("moved")
        for moved in [each for each in session.waiting if not self._is_ours(each)]:
            self._drop_waiting(session, moved)
            self._recent.pop(moved.request.headers.request_id, None)

    def _is_ours(self, pending: _Pending) -> bool:
        """Return True if this sender has owned the partition since it read the request."""
        return self._progress.get(pending.request.place.partition) is pending.progress

    def _take_request(self, pending: _Pending) -> None:
        """Queue a request after those of its session, and drop the one that it supersedes."""
        request = pending.request
        headers = request.headers
        # Without a session and an id no answer can be published: Reknit did not write the record.
        is_for_us = headers.target == self._target and bool(request.session and headers.request_id)
        # A gateway has sent it.
        is_for_us = is_for_us and not request.is_sent
        if not is_for_us or headers.request_id in self._recent:
            self._finish(pending)
            return
        self._remember(headers.request_id)
        session = self._sessions.get(request.session)
        if session is not None and isinstance(headers.supersedes, str):
            self._withdraw(session, headers.supersedes, "answered" if request.is_withdrawal else "superseded")
        if request.is_withdrawal:
            self._finish(pending)
            return
        session = self._sessions.setdefault(request.session, _Session())
        session.waiting.append(pending)
        self._waiting_bytes += len(request.body or b"")

    def _withdraw(self, session: _Session, request_id: str, reason: str) -> None:
        for stale in [each for each in session.waiting if each.request.headers.request_id == request_id]:
            self._drop_waiting(session, stale)
            self._finish(stale)
        if session.current is not None and session.current.request.headers.request_id == request_id:
            session.break_off(reason)

    def _drop_waiting(self, session: _Session, pending: _Pending) -> None:
        session.waiting.remove(pending)
        self._waiting_bytes -= len(pending.request.body or b"")

    def _remember(self, request_id: str) -> None:
        self._recent[request_id] = None
        if len(self._recent) > _MOST_IDS:
            self._recent.popitem(last=False)

    def _finish(self, pending: _Pending) -> None:
        pending.progress.finish(pending.request.place.offset)
        self._is_done.set()

    # Sending.

    async def _work(self, name: str, session: _Session) -> None:
        """Send a session's requests until none is left."""
        while session.waiting:
            session.current = session.waiting.popleft()
            request = session.current.request
            end = await self._answered(session, session.current)
            self._waiting_bytes -= len(request.body or b"")
            async with self._gate:
                if self._is_ours(session.current):
                    await self._end_run(request, end)
                    self._finish(session.current)
            session.current = None
        del self._sessions[name]

    async def _answered(self, session: _Session, pending: _Pending) -> _End:
        """Send a request until it is done or broken off; return the end of its run."""
        session.broken_off = ""
        session.sending = asyncio.create_task(self._send(pending.request))
        try:
            # A separate task, so that breaking off the answer cancels nothing else.
            await asyncio.wait([session.sending])
        finally:
            sending, session.sending = session.sending, None
            sending.cancel()
            # Wait for the end of a program that it started, and take its exception, which asyncio would log.
            await asyncio.gather(sending, return_exceptions=True)
        return _End(session.broken_off) if sending.cancelled() else sending.result()

    async def _send(self, request: Request) -> _End:
        """Send a request until it is done; return the end of its run."""
        number = 0
        while True:
            number += 1
            attempt = _Attempt(AnswerReader(self._source, self._route.framing))
            failure: Exception | None = None
            try:
                await self._try(request, attempt)
            except (BrokerError, RouteError):
                raise
            except Exception as error:  # noqa: BLE001  no failure may leave the session without a next step
                failure = error
            end = self._end_of(request, attempt, failure, number)
            if end is not None:
                return end
            asked = failure.seconds if isinstance(failure, TryAgainError) else None
            await self._sleep(pause_after(number - 1) if asked is None else min(asked, self._longest_wait))

    def _end_of(self, request: Request, attempt: _Attempt, failure: Exception | None, number: int) -> _End | None:
        """Decide what follows an attempt: the end of the run, or None to send the request again."""
        left = attempt.held + attempt.reader.finish()
        refusal = attempt.refusal
        if refusal is not None:
            reason = refusal.reason or f"HTTP {refusal.status}"
            self._say(logging.WARNING, request, f"refused: {reason}")
            return _End(reason, refusal.data, refusal.status)
        if attempt.reader.is_whole and not isinstance(failure, InputError):
            return _End("end of stream", left, attempt.status)
        reason, may_pass = _why(failure, attempt.reader)
        if may_pass and not attempt.is_published and number < self._attempts:
            self._say(logging.WARNING, request, f"attempt {number} of {self._attempts}: {reason}")
            return None
        self._say(logging.ERROR, request, f"no whole answer after {number} of {self._attempts} attempts: {reason}")
        if attempt.is_published:
            return _End(f"cut: {reason}", left, attempt.shown_status)
        if isinstance(failure, TryAgainError) and failure.body is not None:
            return _End(reason, failure.body.data, failure.body.status)
        return _End(reason, left, attempt.shown_status)

    async def _try(self, request: Request, attempt: _Attempt) -> None:
        """Send a request once and publish the answer as it arrives, except the bytes that complete it."""
        await self._pace()
        async with self._slots:
            whole = await self._requests.completed(request)
            if whole.body is None:
                raise _lost(whole)
            call = self._tracing.begin_call(self._call(whole))
            try:
                await self._answer(request, whole.in_trace(call.trace), attempt)
            except BaseException as error:
                call.outcome.error = _error_type(error)
                raise
            finally:
                _note_outcome(call, attempt)
                call.end()

    async def _answer(self, request: Request, sent: Request, attempt: _Attempt) -> None:
        """Publish the answer to a request that is sent in the trace of its call."""
        async with aclosing(self._route.answer(sent)) as pieces:
            while (piece := await self._next_piece(pieces, attempt)) is not None:
                if piece.status is not None and piece.status >= REFUSED_FROM:
                    attempt.refusal = piece
                    return
                attempt.status = piece.status
                attempt.held += attempt.reader.take(piece.data, is_document=piece.is_document)
                if not (self._is_stream and attempt.reader.is_whole):
                    held, attempt.held = attempt.held, b""
                    await self._publish(request, attempt, held)

    def _call(self, request: Request) -> Call:
        model = request.headers.model
        return Call(
            target=self._target,
            model=model if isinstance(model, str) else "",
            session=request.session,
            url=self._route.url,
            trace=request.trace,
        )

    async def _next_piece(self, pieces: AsyncGenerator[Answer, None], attempt: _Attempt) -> Answer | None:
        """Return the next piece; None at the end, or if the connection stays open after the final event."""
        patience = _AFTER_END_SECONDS if self._is_stream and attempt.reader.is_whole else None
        try:
            async with asyncio.timeout(patience):
                return await anext(pieces, None)
        except TimeoutError:
            if patience is None:
                raise
            return None

    async def _publish(self, request: Request, attempt: _Attempt, data: bytes) -> None:
        if data:
            async with self._gate:
                attempt.is_published = True
                await self._feed(request, data, attempt.shown_status)

    async def _end_run(self, request: Request, end: _End) -> None:
        """Publish the rest of an answer and the end of its run.

        They are written together, so that as a rule one transaction of the worker shows the end of the turn and records
        the turn. A client that has seen the end can then append the next turn.
        """
        try:
            if end.data:
                await self._feed(request, end.data, end.status)
        except InputError as error:
            self._say(logging.ERROR, request, f"the rest is not published: {error.code}")
        run = request.headers.request_id
        await self._events.end_run(request.session, run=run, reason=end.reason, trace=request.trace)

    async def _feed(self, request: Request, data: bytes, status: int | None) -> None:
        request_id, framing = request.headers.request_id, self._route.framing
        await self._events.feed(
            request.session,
            data,
            run=request_id,
            framing=framing,
            request_id=request_id,
            status=status,
            trace=request.trace,
        )

    async def _pace(self) -> None:
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + self._interval
        await asyncio.sleep(self._free_at - self._interval - now)

    def _say(self, level: int, request: Request, words: str) -> None:
        log.log(level, "session %s, request %s: %s", request.session, request.headers.request_id, words)

    # Committing.

    async def _commit_what_is_done(self) -> None:
        while True:
            await self._is_done.wait()
            self._is_done.clear()
            await self._commit()

    async def _commit(self) -> None:
        """Commit the progress of each partition. During a rebalance this does nothing; the next assignment retries."""
        changed = {number: progress for number, progress in self._progress.items() if progress.is_changed}
        marks = {number: mark for number, progress in changed.items() if (mark := progress.mark()) is not None}
        if marks and await self._requests.commit_marks({number: Mark(*mark) for number, mark in marks.items()}):
            for number, mark in marks.items():
                changed[number].note_committed(mark)


def _note_outcome(call: OpenCall, attempt: _Attempt) -> None:
    outcome, failure = call.outcome, attempt.reader.failure
    outcome.status = attempt.status if attempt.refusal is None else attempt.refusal.status
    outcome.answer = attempt.reader.facts
    if failure is not None:
        outcome.error = failure.code or "error"


def _error_type(error: BaseException) -> str:
    """Return the type of an error for a span: without content, and of few values."""
    if isinstance(error, TryAgainError):
        return error.reason.removeprefix("HTTP ")
    return error.code if isinstance(error, ReknitError) else type(error).__name__


def _why(failure: Exception | None, reader: AnswerReader) -> tuple[str, bool]:
    """Return why the answer is not complete, without content, and whether another attempt may succeed."""
    if isinstance(failure, InputError):
        return failure.code, False
    if reader.failure is not None:
        return f"error {reader.failure.code}".rstrip(), reader.failure.may_pass
    if isinstance(failure, TryAgainError):
        return failure.reason, True
    return ("no final event", True) if failure is None else (error_name(failure), True)


def _lost(request: Request) -> ReknitError:
    """Return the error of a request without a body."""
    if request.lost == "no_object_store":
        return RouteError(
            "no_object_store", "a request's body is in an object store: set objects.url", path="objects.url"
        )
    return InputError(request.lost or "no_value", "the request has no body")


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first failure of a group."""
    found = failures.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
