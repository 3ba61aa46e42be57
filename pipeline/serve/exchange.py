"""One exchange: a request is repaired and sent, and its answer is relayed byte for byte.

A broken answer never ends cleanly. After a clean end in the middle of an answer most SDKs return half an answer without
an error; after an aborted connection all report one. So the gateway sends the provider's own error event and aborts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import closing
from types import MappingProxyType
from typing import Any, Final, Protocol

import aiohttp
from aiohttp import HttpVersion11, hdrs, web
from msgspec import Struct
from multidict import CIMultiDict, MultiMapping
from yarl import URL

from reknit.pipeline import losses
from reknit.pipeline.client.routes import SILENCE_SECONDS
from reknit.pipeline.errors import error_name
from reknit.pipeline.healing.memory import NO_MEMORY
from reknit.pipeline.healing.single import Healed
from reknit.pipeline.serve.answered import NOTHING_ANSWERED, AnsweredHistory
from reknit.pipeline.serve.aws import AwsSigner, ClientSignature, SignedRequest, Signing, signature_in
from reknit.pipeline.serve.connections import went_over_kept_connection
from reknit.pipeline.serve.conversations import Conversation
from reknit.pipeline.serve.endpoints import Endpoint, has_bearer_key
from reknit.pipeline.serve.errors import GatewayError, error_event
from reknit.pipeline.serve.headers import in_trace, to_client, to_upstream, with_changed_body
from reknit.pipeline.serve.healing import Healer
from reknit.pipeline.serve.memory import GatewayMemory
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.serve.publishing import Exchanged
from reknit.pipeline.serve.received import HOLD_SECONDS, Received, Refusal
from reknit.pipeline.serve.recent import Exchange
from reknit.pipeline.serve.repair import MOST_BYTES, Repaired, Repairs, RequestBody, decoded
from reknit.pipeline.serve.streams import StreamWatch
from reknit.pipeline.serve.upstreams import Destination, shapes_of
from reknit.pipeline.session.bindings import End
from reknit.pipeline.tracing.calls import Call, OpenCall, Tracing
from reknit.pipeline.urls import host_of
from reknit.topics.trace import carried, trace_headers

log = logging.getLogger("reknit.serve")

_CONNECT_SECONDS: Final = 10.0
_REDIRECTS: Final = range(300, 400)
_NOT_MODIFIED: Final = 304
_FIXES_SHOWN: Final = 20
_OWN_KEYS: Final = {"anthropic": "x-api-key", "gemini": "x-goog-api-key"}
# The reasons with which a run ends, by the end of its answer.
_REASONS: Final = MappingProxyType({"whole": "end of stream", "cut": "cut", "left": "client left"})
_CUT: Final = "The stream from the provider broke before its end."


class _Sent(Struct):
    """A request to the upstream; ``plain`` is the body of one to a model, without content encoding.

    ``signing`` is of a request that its client signed for AWS.
    """

    method: str
    url: str
    body: Any
    headers: CIMultiDict[str]
    plain: bytes = b""
    signing: Signing | None = None


class _Known(Struct, frozen=True):
    """The conversation of a request, and its memory."""

    conversation: Conversation
    healer: Healer
    answered: AnsweredHistory


class Publishes(Protocol):
    """Writes exchanges to topics or a file."""

    def begin(self, exchanged: Exchanged, received: Received) -> None: ...


class Exchanges:
    """Relays exchanges through one pool of connections.

    Args:
        client: the connections to the upstreams.
        metrics: counted per exchange.
        repairs: repair the requests.
        memory: of earlier requests.
        silence_seconds: an answer that sends nothing for longer is broken off.
        hold_seconds: a stream without content is passed on after this time.
        tracing: gets a call for each request to a model.
        publishing: gets each exchange with a model; None for none.
    """

    def __init__(
        self,
        client: aiohttp.ClientSession,
        metrics: GatewayMetrics,
        repairs: Repairs,
        memory: GatewayMemory,
        *,
        silence_seconds: float = SILENCE_SECONDS,
        hold_seconds: float = HOLD_SECONDS,
        tracing: Tracing | None = None,
        publishing: Publishes | None = None,
    ) -> None:
        self._publishing = publishing
        self._hold_seconds = hold_seconds
        self._tracing = tracing or Tracing()
        self._client = client
        self._metrics = metrics
        self._repairs = repairs
        self._memory = memory
        self._signer = AwsSigner()
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=silence_seconds)

    async def relay(self, request: web.Request, to: Destination, exchange: Exchange) -> web.StreamResponse:
        """Answer a request, and note the result in ``exchange``.

        Raises:
            GatewayError: the request cannot be sent, or no answer came.
        """
        exchange.request_id = secrets.token_hex(16)
        if to.endpoint is None or request.method != hdrs.METH_POST:
            sent = await self._passed(request, to)
            with closing(Received(await self._send(sent, to), "")) as received:
                return await self._answer(request, received, to, exchange, added=_added(exchange, None))
        given = await _read_body(request)
        signing = await self._signing(request, to, given)
        is_fixed = signing is not None and not signing.can_change
        data = decoded(given, request.headers.get(hdrs.CONTENT_ENCODING, ""))
        body = None if data is None else RequestBody(data)
        known = None if body is None or is_fixed else self._known(request, body, to, to.endpoint)
        done = Repaired("failed", reason="signature") if is_fixed else await self._repair(body, to, to.endpoint, known)
        if body is not None and known is not None:
            done = await known.healer.recall(done, body.data)
        self._note_repair(done, to, to.endpoint, exchange)
        # Without tracing, nothing reads what describes the call.
        call = (
            self._tracing.begin_call(_call_of(request, to, to.endpoint, body)) if self._tracing.is_on else OpenCall({})
        )
        headers = in_trace(request.headers, call.trace) if self._tracing.is_on else request.headers
        try:
            identity = to.endpoint.streams or (body is not None and body.asks_for_stream)
            passed = to_upstream(headers, is_changed=done.body is not None, identity=identity, key=_key_of(to))
            sent = _Sent(request.method, to.url, given, passed, b"" if body is None else body.data, signing)
            if done.body is not None:
                sent.body = sent.plain = done.body
            received = self._received(await self._send(sent, to), to.endpoint.target)
            if known is not None and known.healer.most_healings:
                received = await self._heal(received, sent, known.healer, to, exchange)
            with closing(received):
                end = done.end if received.is_accepted else ""
                if known is not None:
                    known.answered.note(end)
                if self._publishing is not None:
                    self._publishing.begin(
                        _exchanged(headers, to, exchange, sent, body=body, done=done, known=known, end=end), received
                    )
                return await self._answer(request, received, to, exchange, added=_added(exchange, done), call=call)
        except BaseException as error:
            call.outcome.error = str(error.status) if isinstance(error, GatewayError) else type(error).__name__
            raise
        finally:
            _note_outcome(call, exchange)
            call.end()

    def _received(self, answer: aiohttp.ClientResponse, target: str) -> Received:
        return Received(answer, target, with_facts=self._tracing.is_on)

    def _known(self, request: web.Request, body: RequestBody, to: Destination, endpoint: Endpoint) -> _Known:
        """Return what is known of a request's conversation."""
        memory, upstream = self._memory, to.upstream
        conversation = Conversation(
            memory.secret, request.headers, body.members, upstream=upstream.name, target=endpoint.target
        )
        key = conversation.key
        return _Known(
            conversation,
            Healer(memory.refusals, self._repairs, endpoint=endpoint, upstream=upstream, key=key),
            AnsweredHistory(memory.answered, key, body.members),
        )

    async def _heal(
        self, received: Received, sent: _Sent, healer: Healer, to: Destination, exchange: Exchange
    ) -> Received:
        """Send narrower requests after refusals that can be healed; return the last answer.

        Args:
            received: the answer to the request.
            sent: the request; it becomes the last one that was sent.
            healer: of the request.
            to: where it goes.
            exchange: notes the healings.
        """
        target = received.target
        try:
            refusal = await received.refusal(self._hold_seconds)
            for _ in range(healer.most_healings):
                found = None if refusal is None else await healer.heal(refusal, sent.plain)
                if found is None:
                    break
                received.close()
                sent.body = sent.plain = found.body
                sent.headers = with_changed_body(sent.headers)
                received = self._received(await self._send(sent, to), target)
                refusal = await received.refusal(self._hold_seconds)
                self._note_healing(found, received, refusal, target, exchange)
        except BaseException:  # the client left while its answer was held
            received.close()
            raise
        finally:
            healer.keep()
        return received

    def _note_healing(
        self, found: Healed, received: Received, refusal: Refusal | None, target: str, exchange: Exchange
    ) -> None:
        name = found.fixes[0].code.removeprefix("healed_")
        exchange.healed = (*exchange.healed, name)
        is_accepted = refusal is None and received.answer.status < web.HTTPBadRequest.status_code
        self._metrics.healed.labels(target, name, "accepted" if is_accepted else "refused").inc()

    async def _repair(
        self, body: RequestBody | None, to: Destination, endpoint: Endpoint, known: _Known | None
    ) -> Repaired:
        """Repair a body; None is one whose content encoding cannot be removed."""
        begun = time.perf_counter()
        done = (
            Repaired("failed", reason="content_encoding")
            if body is None or known is None
            else await self._repairs.repair(
                body, endpoint, to.upstream, known.answered.known(), tenant=known.conversation.tenant()
            )
        )
        self._metrics.repair_seconds.observe(time.perf_counter() - begun)
        return done

    def _note_repair(self, done: Repaired, to: Destination, endpoint: Endpoint, exchange: Exchange) -> None:
        """Count the result of repair.

        Raises:
            GatewayError: 400: the request is not sent.
        """
        exchange.repair, exchange.fixes = done.outcome, done.fixes
        self._metrics.repairs.labels(endpoint.target, done.outcome).inc()
        for code, count in done.fixes.items():
            self._metrics.fixes.labels(code, endpoint.target).inc(count)
        if done.outcome in {"failed", "late"}:
            log.warning(
                "%s: a request was forwarded without repair: %s %s", to.upstream.name, done.outcome, done.reason
            )
        if done.outcome == "rejected" and to.upstream.reject == "local":
            raise GatewayError(
                400, f"Reknit did not send this request, since the provider would refuse it. {done.reason}"
            )

    async def _passed(self, request: web.Request, to: Destination) -> _Sent:
        """Return a request that is not to a model. Its body is forwarded while it is received, unless it is signed.

        Raises:
            GatewayError: 413: a body to sign is too large; it cannot be signed.
        """
        headers = to_upstream(request.headers, is_changed=False, identity=False, key=_key_of(to))
        if _signature_for(to, request.headers) is None:
            return _unread(request, headers, to)
        given = await _read_body(request)
        return _Sent(request.method, to.url, given, headers, signing=await self._signing(request, to, given))

    async def _signing(self, request: web.Request, to: Destination, given: bytes) -> Signing | None:
        """Return how a request that its client signed for AWS is sent; None for other requests.

        Raises:
            GatewayError: it cannot be sent.
        """
        signature = _signature_for(to, request.headers)
        if signature is None:
            return None
        client = SignedRequest(signature, request.method, request.host, request.raw_path, request.headers)
        return await self._signer.signing_of(client, given, to.url, is_any_allowed=to.upstream.sign == "any")

    async def _send(self, sent: _Sent, to: Destination) -> aiohttp.ClientResponse:
        """Send a request; once more if it went over a kept connection that the upstream had closed.

        Raises:
            GatewayError: 502 or 504: no answer came.
        """
        headers = sent.headers
        if sent.signing is not None:
            headers = sent.signing.headers_for(sent.url, headers, sent.body)
        for can_repeat in (isinstance(sent.body, bytes), False):
            try:
                return await self._client.request(
                    sent.method,
                    URL(sent.url, encoded=True),
                    data=sent.body,
                    headers=headers,
                    allow_redirects=False,
                    timeout=self._timeout,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if not (can_repeat and went_over_kept_connection()):
                    raise _unreachable(to, error) from error
                # The provider closed the connection while the request was on its way. It is not known to have read the
                # request. Without this, clients without retries of their own report an error.
                self._metrics.resent.labels(to.upstream.name).inc()
            except TimeoutError as error:
                raise GatewayError(504, f"{host_of(to.url)} did not answer in time") from error
            except aiohttp.ClientError as error:
                raise _unreachable(to, error) from error
        raise AssertionError("the second attempt returns or raises")

    async def _answer(
        self,
        request: web.Request,
        received: Received,
        to: Destination,
        exchange: Exchange,
        *,
        added: Mapping[str, str],
        call: OpenCall | None = None,
    ) -> web.StreamResponse:
        answer, watch = received.answer, received.watch
        response = _response_of(received, to, added)
        exchange.status = answer.status
        await response.prepare(request)
        end = "whole"
        try:
            if received.begin:
                if received.run is not None:
                    await self._before_end(received)
                await response.write(received.begin)
            if received.broken is not None:
                raise received.broken
            async for data in answer.content.iter_any():
                received.take(data)
                if received.run is not None:
                    await self._before_end(received)
                await response.write(data)
        except (aiohttp.ClientError, TimeoutError) as error:
            if isinstance(error, aiohttp.ClientConnectionResetError):  # raised by write(): the client left
                end = "left"
                raise
            end = "cut"
            log.warning("%s: an answer broke: %s", to.upstream.name, error_name(error))
        except (ConnectionError, asyncio.CancelledError):
            end = "left"
            raise
        else:
            if watch is not None and not watch.ends_whole():
                end = "cut"
                log.warning("%s: a stream ended without its final event", to.upstream.name)
        finally:
            received.finish(_REASONS[end])
            self._count_losses(received.losses, to, exchange)
            if watch is not None and to.endpoint is not None:
                exchange.end = end
                self._metrics.streams.labels(to.endpoint.target, end).inc()
            if call is not None and self._tracing.is_on:
                call.outcome.answer = received.facts
        # A client that has the end of an answer, or knows that it was cut, finds the exchange in the topics.
        await received.stored()
        if end == "cut":
            await _abort(request, response, watch, "" if to.endpoint is None else to.endpoint.target)
        else:
            await response.write_eof()
        return response

    async def _before_end(self, received: Received) -> None:
        """Before the last bytes of a recorded answer, wait until it is stored: the gateway may be killed after them.

        Not called for other answers, for which each event of a stream would start a coroutine.
        """
        if received.is_complete:
            if received.watch is None:
                received.finish(_REASONS["whole"])
            await received.stored()

    def _count_losses(self, count: int, to: Destination, exchange: Exchange) -> None:
        """Count the blocks of a request that its provider left out."""
        if count and to.endpoint is not None:
            exchange.fixes = {**exchange.fixes, losses.CODE: count}
            self._metrics.fixes.labels(losses.CODE, to.endpoint.target).inc(count)

    async def close(self) -> None:
        await self._client.close()


def _signature_for(to: Destination, headers: MultiMapping[str]) -> ClientSignature | None:
    """Return the signature of a request for AWS; None if it has none, or if the gateway's own key replaces it."""
    return None if to.upstream.key_env else signature_in(headers)


def _unread(request: web.Request, headers: CIMultiDict[str], to: Destination) -> _Sent:
    """Return a request whose body is forwarded while it is received."""
    body = request.content if request.can_read_body else None
    # A length that the client declared stays, so that the upstream need not read chunks.
    length = request.headers.get(hdrs.CONTENT_LENGTH)
    if length is not None and body is not None:
        headers[hdrs.CONTENT_LENGTH] = length
    return _Sent(request.method, to.url, body, headers)


async def _read_body(request: web.Request) -> bytes:
    """Read a request's body.

    Raises:
        GatewayError: 413: it is too large.
    """
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > MOST_BYTES:
            raise GatewayError(413, f"the body of the request exceeds {MOST_BYTES} bytes")
    return bytes(body)


def _call_of(request: web.Request, to: Destination, endpoint: Endpoint, body: RequestBody | None) -> Call:
    model = endpoint.model or ("" if body is None else body.model)
    trace = carried(trace_headers(request.headers))
    return Call(target=endpoint.target, model=model, url=to.url, trace=trace)


def _note_outcome(call: OpenCall, exchange: Exchange) -> None:
    outcome = call.outcome
    outcome.status = exchange.status or None
    outcome.fixes, outcome.healed = exchange.fixes, exchange.healed
    if exchange.end == "cut":
        outcome.error = "cut"


def _response_of(received: Received, to: Destination, added: Mapping[str, str]) -> web.StreamResponse:
    """Return an answer for the client, without content so far.

    Raises:
        GatewayError: the answer is a redirect.
    """
    answer = received.answer
    if answer.status in _REDIRECTS and answer.status != _NOT_MODIFIED:
        where = host_of(answer.headers.get(hdrs.LOCATION, ""), to.url)
        raise GatewayError(502, f"{to.upstream.name} answered with a redirect to {where}; redirects are not followed")
    headers = to_client(answer.headers, may_grow=received.watch is not None)
    headers.update(added)
    return web.StreamResponse(status=answer.status, reason=answer.reason, headers=headers)


def _exchanged(
    headers: MultiMapping[str],
    to: Destination,
    exchange: Exchange,
    sent: _Sent,
    *,
    body: RequestBody | None,
    done: Repaired,
    known: _Known | None,
    end: End,
) -> Exchanged:
    """Return what is published of an exchange with a model."""
    assert to.endpoint is not None  # noqa: S101  the caller asked
    return Exchanged(
        headers=headers,
        upstream=to.upstream,
        endpoint=to.endpoint,
        request_id=exchange.request_id,
        given=body,
        conversation=None if known is None else known.conversation,
        sent=sent.plain,
        written=done.written,
        memory=NO_MEMORY if known is None else known.healer.memory,
        healed=exchange.healed,
        answered=NOTHING_ANSWERED if known is None else known.answered.known(),
        end=end,
    )


def _key_of(to: Destination) -> tuple[str, str] | None:
    """Return the header with the gateway's own key for an upstream."""
    if not to.upstream.key_env:
        return None
    key = os.environ.get(to.upstream.key_env, "")
    bearer = ("authorization", f"Bearer {key}")
    if has_bearer_key(URL(to.url, encoded=True).raw_path):
        return bearer
    shapes = shapes_of(to.upstream) if to.endpoint is None else {to.endpoint.target}
    name = next((_OWN_KEYS[shape] for shape in shapes if shape in _OWN_KEYS), None)
    return (name, key) if name else bearer


def _added(exchange: Exchange, done: Repaired | None) -> dict[str, str]:
    """Return the headers that the gateway adds to an answer."""
    added = {"x-reknit-request-id": exchange.request_id}
    if exchange.healed:
        added["x-reknit-healed"] = ", ".join(exchange.healed)
    if done is not None and done.fixes:
        shown = list(done.fixes.items())[:_FIXES_SHOWN]
        added["x-reknit-fixes"] = ", ".join(f"{code}={count}" for code, count in shown)
    if done is not None and done.params:
        added["x-reknit-params"] = ", ".join(done.params)
    return added


def _unreachable(to: Destination, error: Exception) -> GatewayError:
    # The error's text may hold the URL with a key in its query.
    return GatewayError(502, f"{host_of(to.url)} cannot be reached: {error_name(error)}")


async def _abort(request: web.Request, response: web.StreamResponse, watch: StreamWatch | None, target: str) -> None:
    """End a broken answer with the provider's error event, if one can follow, and without the last chunk."""
    transport = request.transport
    if transport is None:
        return
    # An unfinished SSE event is ended by a blank line. After an unfinished frame nothing can follow.
    if watch is not None and (watch.is_at_boundary or not watch.is_in_frames):
        event = error_event(target, _CUT, watch.first, watch.last, is_in_frames=watch.is_in_frames)
        try:
            await response.write(event if watch.is_at_boundary else b"\n\n" + event)
        except ConnectionError:
            return
    if request.version >= HttpVersion11:
        # Sends what is buffered first. The client misses the last chunk or a part of the length.
        transport.close()
    else:
        # Before HTTP/1.1 a closed connection is a clean end.
        transport.abort()
