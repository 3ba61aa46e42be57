"""One answer as records of provider events: the pieces of a stream immediately, any other answer at its end."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from reknit.pipeline.serve.input_log import InputLog, end_of_run
from reknit.pipeline.serve.journal_format import InputRecord
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.serve.repair import decoded
from reknit.topics import PROVIDER_EVENTS
from reknit.topics import headers as names
from reknit.topics.headers import EventHeaders, Headers

# Answers that are one document are far shorter, and so are refusals.
_MOST_BYTES: Final = 8 * 1024 * 1024
_REFUSED: Final = 400
INCOMPLETE: Final = "log_incomplete"
"""The reason with which a run ends whose records are not complete."""


class RecordedRun:
    """Writes the records of one answer.

    Args:
        log: takes the records.
        metrics: counts answers whose records are not complete.
        session: the key of the records.
        source: of the answer.
        run: its id.
        is_stream: the answer is a stream without content encoding.
        encoding: the content encoding of an answer that is not.
        status: of the answer.
        request_id: of the published request that this answers; "" for none.
        trace: headers of the trace that the exchange belongs to.
    """

    def __init__(
        self,
        log: InputLog,
        metrics: GatewayMetrics,
        *,
        session: str,
        source: str,
        run: str,
        is_stream: bool,
        encoding: str = "",
        status: int = 200,
        request_id: str = "",
        trace: Headers = (),
    ) -> None:
        self._log = log
        self._metrics = metrics
        self._is_stream = is_stream and status < _REFUSED
        self._encoding = encoding
        self._collected = bytearray()
        self._trace = trace
        self._described = EventHeaders(
            source=source,
            run=run,
            framing="bytes",
            request_id=request_id or UNSET,
            status=status if request_id and status >= _REFUSED else UNSET,
        )
        self._last = InputRecord(
            PROVIDER_EVENTS, session, None, names.encode(EventHeaders(source=source, run=run)), run, -1
        )
        self._failures = log.failures
        self._is_over = False

    def take(self, data: bytes) -> None:
        """Take the next bytes of the answer."""
        if self._is_over or not data:
            return
        if self._is_stream:
            self._write(data)
        elif len(self._collected) + len(data) > _MOST_BYTES:
            self._give_up("too_long")
        else:
            self._collected += data

    async def stored(self) -> None:
        """Wait until everything so far is in the journal."""
        await self._log.stored()

    def finish(self, reason: str) -> None:
        """End the run; ``reason`` says how the answer ended."""
        if not self._is_over and self._collected:
            plain = decoded(bytes(self._collected), self._encoding)
            if plain is None:
                self._give_up("content_encoding")
            else:
                self._write(plain)
        if not self._is_over and self._failures != self._log.failures:
            self._give_up("disk")
        if not self._is_over:
            self._end(reason)

    def _write(self, data: bytes) -> None:
        seq = self._last.seq + 1
        headers = (*names.encode(self._described), (names.SEQ, b"%d" % seq), *self._trace)
        record = InputRecord(self._last.topic, self._last.session, data, headers, self._last.run, seq)
        if self._failures != self._log.failures:
            self._give_up("disk")
        elif self._log.put(record):
            self._last = record
        else:
            self._give_up("journal_full")

    def _give_up(self, reason: str) -> None:
        """End the run as incomplete. Later bytes would be joined to those before the gap."""
        self._metrics.log_incomplete.labels(reason).inc()
        self._collected.clear()
        self._end(INCOMPLETE)

    def _end(self, reason: str) -> None:
        self._is_over = True
        self._log.put_end(end_of_run(self._last, reason))
