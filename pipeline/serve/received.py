"""The beginning of an answer, which is read before the client gets any of it.

A refusal comes as a status, or as an event inside a stream with status 200. A stream is held until its first content:
until then another request can take its place, and the client sees one answer. Later the client has the message's id,
and a second answer would give it two.
"""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp
from aiohttp import hdrs, web
from msgspec import Struct

from reknit.pipeline.client.answers import AnswerFacts
from reknit.pipeline.serve.documents import DocumentWatch, may_have_losses
from reknit.pipeline.serve.recorded import RecordedRun
from reknit.pipeline.serve.repair import decoded
from reknit.pipeline.serve.streams import StreamWatch, is_in_frames, is_json, is_stream

# Bytes of an answer that are read here at most. A longer refusal is no sentence.
_MOST_BYTES: Final = 64 * 1024
# CLIProxyAPI#5724 proposes it: errors come within 1 to 3 s of the first events.
HOLD_SECONDS: Final = 10.0
_REFUSED: Final = web.HTTPBadRequest.status_code


class Refusal(Struct, frozen=True):
    """The provider's refusal of a request: ``error`` has no content encoding."""

    status: int
    error: bytes


class Received:
    """One answer of the provider.

    Attributes:
        target: of the request; "" for a request that is not to a model.
        answer: its status, headers and the bytes that were not read yet.
        begin: the bytes that were read here; the client gets them first.
        watch: of a stream that can be read; it has seen ``begin``.
        document: of an answer that is one JSON document.
        broken: the connection broke after ``begin``.
        run: writes the answer to the topics.

    Args:
        answer: of the provider.
        target: of the request, or "".
        with_facts: the facts of a document are asked for at its end.
    """

    def __init__(self, answer: aiohttp.ClientResponse, target: str, *, with_facts: bool = False) -> None:
        self.target = target
        self.answer = answer
        self.begin = b""
        self.watch: StreamWatch | None = None
        self.document: DocumentWatch | None = None
        if target and answer.status == web.HTTPOk.status_code:
            self._watch(answer.content_type, answer.headers.get(hdrs.CONTENT_ENCODING), with_facts=with_facts)
        self.broken: aiohttp.ClientError | TimeoutError | None = None
        self.run: RecordedRun | None = None
        self._bytes = 0

    def _watch(self, content_type: str, encoding: str | None, *, with_facts: bool) -> None:
        if is_stream(content_type):
            if encoding is None:
                self.watch = StreamWatch(self.target, is_in_frames=is_in_frames(content_type))
        elif is_json(content_type) and (with_facts or may_have_losses(self.target)):
            self.document = DocumentWatch(self.target, encoding or "")

    def record_by(self, run: RecordedRun) -> None:
        """Let the answer be recorded from its beginning."""
        self.run = run
        self._bytes = len(self.begin)
        run.take(self.begin)

    def close(self) -> None:
        """Close the connection, which is not kept: where the client left, the provider must stop generating."""
        self.finish("not passed on")
        self.answer.close()

    def finish(self, reason: str) -> None:
        """End the record of the answer."""
        if self.run is not None:
            self.run.finish(reason)

    async def stored(self) -> None:
        """Wait until the record of the answer is stored."""
        if self.run is not None:
            await self.run.stored()

    def take(self, data: bytes) -> None:
        """Note the next bytes, before they are passed on."""
        self._bytes += len(data)
        if self.run is not None:
            self.run.take(data)
        if self.watch is not None:
            self.watch.take(data)
        elif self.document is not None:
            self.document.take(data)

    @property
    def is_accepted(self) -> bool:
        """True unless the provider refuses the request, as far as the answer was read."""
        return self.answer.status < _REFUSED and not (self.watch is not None and self.watch.is_refused)

    @property
    def is_complete(self) -> bool:
        """True if the client has the whole answer with the bytes so far: their length or an event says so."""
        is_last = self.answer.content_length is not None and self._bytes >= self.answer.content_length
        return is_last or (self.watch is not None and self.watch.is_whole)

    @property
    def losses(self) -> int:
        """The number of blocks of the request that the answer reports as dropped."""
        seen = self.watch or self.document
        return 0 if seen is None else seen.losses

    @property
    def facts(self) -> AnswerFacts:
        """The id, model, stop reason and tokens of the answer."""
        seen = self.watch or self.document
        return AnswerFacts() if seen is None else seen.facts

    async def refusal(self, hold_seconds: float = HOLD_SECONDS) -> Refusal | None:
        """Read the beginning and return the refusal; None for any other answer, and for one that cannot be read.

        Args:
            hold_seconds: a stream without content is passed on after this time.
        """
        try:
            if self.answer.status >= _REFUSED:
                return await self._refusal_by_status()
            return None if self.watch is None else await self._refusal_in_stream(self.watch, hold_seconds)
        except (aiohttp.ClientError, TimeoutError) as error:
            self.broken = error
            return None

    async def _refusal_by_status(self) -> Refusal | None:
        while piece := await self.answer.content.read(_MOST_BYTES):
            self.begin += piece
            if len(self.begin) > _MOST_BYTES:
                return None
        error = decoded(self.begin, self.answer.headers.get(hdrs.CONTENT_ENCODING, ""))
        return None if error is None else Refusal(self.answer.status, error)

    async def _refusal_in_stream(self, watch: StreamWatch, hold_seconds: float) -> Refusal | None:
        until = asyncio.get_running_loop().time() + hold_seconds
        while not watch.has_content and len(self.begin) <= _MOST_BYTES:
            try:
                async with asyncio.timeout_at(until) as hold:
                    data = await self.answer.content.readany()
            except TimeoutError:
                if not hold.expired():  # the silence of the provider
                    raise
                break
            if not data:
                break
            self.begin += data
            watch.take(data)
            if watch.is_refused and not watch.has_content:
                return Refusal(_REFUSED, self.begin)
        return None
