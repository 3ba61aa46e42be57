"""Requests as lines of JSON, for a gateway that only observes and has no brokers.

`reknit ingest requests --session-from session` reads such a file. A line has no header of the client but those of the
trace and its `user-agent`, and no query of the URL, which may hold a key.
"""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from aiohttp import hdrs
from msgspec import Raw, Struct

from reknit.pipeline.errors import InputError, error_name
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.serve.publishing import Exchanged, session_of
from reknit.pipeline.serve.received import Received
from reknit.topics.trace import CARRIED

log = logging.getLogger("reknit.serve")

# Most bytes of requests that wait for the disk.
_MOST_WAITING: Final = 64 * 2**20
_PASSED: Final = (hdrs.USER_AGENT.lower(), *CARRIED)


class _Line(Struct, frozen=True):
    time: int
    session: str
    request_id: str
    url: str
    status: int
    headers: dict[str, str]
    body: Raw


class RequestLines:
    """Writes a line for each request to a model.

    Args:
        file: it is appended to, and made for its owner only.
        metrics: counts requests that are not written.
        secret: of the gateway, for names of sessions.

    Raises:
        InputError: ``log_unusable``.
    """

    def __init__(self, file: Path, metrics: GatewayMetrics, secret: bytes) -> None:
        self._metrics = metrics
        self._secret = secret
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, "reknit-lines")
        try:
            self._file = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        except OSError as error:
            raise InputError("log_unusable", f"{file}: {error.strerror}. Set --shadow-log.") from error

    def begin(self, exchanged: Exchanged, received: Received) -> None:
        """Write the line of a request whose answer begins."""
        body = exchanged.given
        if body is None or body.error:
            self._metrics.log_incomplete.labels("turns").inc()
            return
        size = len(body.data)
        if self._waiting + size > _MOST_WAITING:
            self._metrics.log_incomplete.labels("journal_full").inc()
            return
        headers = exchanged.headers
        line = _Line(
            time=int(time.time() * 1000),
            session=session_of(self._secret, exchanged, body),
            request_id=exchanged.request_id,
            url=urlsplit(str(received.answer.url))._replace(query="", fragment="").geturl(),
            status=received.answer.status,
            headers={name: headers[name] for name in _PASSED if name in headers},
            body=Raw(body.data),
        )
        self._waiting += size
        written = self._thread.submit(self._write, line)
        written.add_done_callback(lambda done: self._note(done, size))

    def close(self) -> None:
        """Write the lines that wait."""
        self._thread.shutdown()
        os.close(self._file)

    def _write(self, line: _Line) -> None:
        # A body may be laid out over several lines.
        data = msgspec.json.format(msgspec.json.encode(line), indent=-1) + b"\n"
        start = os.lseek(self._file, 0, os.SEEK_END)
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, start)
            raise

    def _note(self, done: Future[None], size: int) -> None:
        self._waiting -= size
        error = done.exception()
        if error is not None:
            self._metrics.log_lost.labels("disk" if isinstance(error, OSError) else "unwritable").inc()
            log.warning("a request is not written: %s", error_name(error))
