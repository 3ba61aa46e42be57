"""Begins the records of each exchange for the input topics, under the name of their session."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from functools import partial
from typing import Final

from aiohttp import hdrs
from msgspec import Struct
from multidict import MultiMapping

from reknit.pipeline.healing.memory import NO_MEMORY, TargetMemory
from reknit.pipeline.serve.answered import NOTHING_ANSWERED
from reknit.pipeline.serve.conversations import Conversation
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.input_log import InputLog
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.serve.received import Received
from reknit.pipeline.serve.recorded import RecordedRun
from reknit.pipeline.serve.repair import RequestBody
from reknit.pipeline.serve.sent_requests import SentRequest, SessionLogs
from reknit.pipeline.serve.streams import is_stream
from reknit.pipeline.serve.upstreams import Publish, Upstream
from reknit.pipeline.session.bindings import End
from reknit.topics import headers as names
from reknit.topics.headers import Headers
from reknit.topics.trace import trace_headers

# The header by which a platform names its own session.
SESSION: Final = "x-session-id"
_LONGEST_SESSION: Final = 500
# The first product of a `user-agent` (RFC 9110, 10.1.5).
_PRODUCT: Final = re.compile(r"[\w.+@-]{1,40}/[\w.+-]{1,20}", re.ASCII)
# Digits of the digests in a session's name.
_TENANT_DIGITS: Final = 12
_CONVERSATION_DIGITS: Final = 32


class Exchanged(Struct, frozen=True, kw_only=True):
    """A request to a model, and how it was sent.

    Attributes:
        headers: of the client.
        upstream: that the request was sent to.
        endpoint: of the request.
        request_id: the random id of the exchange.
        given: the client's body; None if it cannot be decoded.
        conversation: of the request; None where nothing is known of it.
        sent: the body that was sent, without content encoding.
        written: the body that Reknit writes for the same history; None if it could not be judged.
        memory: of earlier refusals that the request was written by.
        healed: the refusals that were healed before it.
        answered: earlier requests that it was written by, as of ``normalize_answered``.
        end: whether a later turn may change the end of the body, if the provider accepted it.
    """

    headers: MultiMapping[str]
    upstream: Upstream
    endpoint: Endpoint
    request_id: str
    given: RequestBody | None
    sent: bytes
    written: bytes | None
    conversation: Conversation | None = None
    memory: TargetMemory = NO_MEMORY
    healed: tuple[str, ...] = ()
    answered: Mapping[int, bool] = NOTHING_ANSWERED
    end: End = ""


class Publishing:
    """Begins the records of each exchange.

    Args:
        log: takes the records.
        metrics: counts exchanges that are not, or not completely, published.
        secret: of the gateway, for names of sessions.
        default: for upstreams without a setting of their own.
        is_shadow: requests are forwarded unchanged, and the rules that they break are named.
    """

    def __init__(
        self, log: InputLog, metrics: GatewayMetrics, secret: bytes, default: Publish, *, is_shadow: bool = False
    ) -> None:
        self._log = log
        self._metrics = metrics
        self._secret = secret
        self._default = default
        self._is_shadow = is_shadow
        self._failures = 0
        self._sessions = SessionLogs(metrics, secrets.token_bytes(16))

    def begin(self, exchanged: Exchanged, received: Received) -> None:
        """Publish the turns and the request, and let its answer be recorded."""
        publish = exchanged.upstream.publish or self._default
        if publish == "off":
            return
        if publish == "events":
            # The platform writes the turns of its session, and names it.
            session = _stated(exchanged.headers.get(SESSION, ""))
        else:
            session = "" if exchanged.given is None else session_of(self._secret, exchanged, exchanged.given)
        if not session:
            self._metrics.log_incomplete.labels("session").inc()
            return
        if publish == "all" and exchanged.given is not None:
            self._publish_request(session, exchanged, exchanged.given)
        answer = received.answer
        run = RecordedRun(
            self._log,
            self._metrics,
            session=session,
            source=exchanged.endpoint.target,
            run=exchanged.request_id,
            is_stream=is_stream(answer.content_type) and hdrs.CONTENT_ENCODING not in answer.headers,
            encoding=answer.headers.get(hdrs.CONTENT_ENCODING, ""),
            status=answer.status,
            request_id=exchanged.request_id if publish == "all" else "",
            trace=trace_headers(exchanged.headers),
        )
        received.record_by(run)

    def _publish_request(self, session: str, exchanged: Exchanged, given: RequestBody) -> None:
        settings = exchanged.upstream.settings_of(exchanged.endpoint.model or given.model)
        sent = SentRequest(
            session=session,
            endpoint=exchanged.endpoint,
            request_id=exchanged.request_id,
            members={**settings.params, **given.members},
            sent=exchanged.sent,
            written=None if self._is_shadow else exchanged.written,
            policy=settings.policy,
            memory=exchanged.memory,
            healings=exchanged.healed,
            answered=exchanged.answered,
            end=exchanged.end,
            headers=(*_producer(exchanged.headers), *trace_headers(exchanged.headers)),
            is_judged=self._is_shadow,
        )
        if self._failures != self._log.failures:  # some turns were not stored
            self._failures = self._log.failures
            self._sessions.forgets_all = True
        if not self._log.put_made(partial(self._sessions.records, sent), len(given.data)):
            self._sessions.incomplete.add(session)
            self._metrics.log_incomplete.labels("journal_full").inc()


def session_of(secret: bytes, exchanged: Exchanged, given: RequestBody) -> str:
    """Return the name of the session of a request.

    It has a digest of the credential, which keeps tenants apart, and one of the conversation.

    Args:
        secret: of the gateway.
        exchanged: the exchange.
        given: the client's body.
    """
    headers, upstream, target = exchanged.headers, exchanged.upstream.name, exchanged.endpoint.target
    conversation = exchanged.conversation or Conversation(
        secret, headers, given.members, upstream=upstream, target=target
    )
    tenant, key = conversation.tenant().hex(), conversation.key().hex()
    return f"serve-{tenant[:_TENANT_DIGITS]}/{key[:_CONVERSATION_DIGITS]}"


def _stated(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8
        return ""
    return name if len(name) <= _LONGEST_SESSION else ""


def _producer(headers: MultiMapping[str]) -> Headers:
    found = _PRODUCT.match(headers.get(hdrs.USER_AGENT, ""))
    return ((names.PRODUCER, found[0].encode()),) if found else ()
