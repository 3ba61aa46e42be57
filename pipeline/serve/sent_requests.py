"""The records of a session's log for the requests that the gateway sends: new turns, then the request itself."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, structs

from reknit.pipeline.errors import ReknitError, error_name
from reknit.pipeline.healing.memory import NO_MEMORY, TargetMemory
from reknit.pipeline.policy import Policy
from reknit.pipeline.serve.answered import NOTHING_ANSWERED
from reknit.pipeline.serve.endpoints import Endpoint
from reknit.pipeline.serve.journal_format import InputRecord
from reknit.pipeline.serve.metrics import GatewayMetrics
from reknit.pipeline.serve.mirrored import Conversations, Logged
from reknit.pipeline.session import normalize
from reknit.pipeline.session.bindings import End
from reknit.pipeline.stages.content import ROOTS
from reknit.pipeline.stages.defaults import chains_in
from reknit.topics import AGENT_TURNS
from reknit.topics import headers as names
from reknit.topics.headers import Headers
from reknit.topics.records import (
    GATEWAY,
    AnsweredRequest,
    PolicyChange,
    RequestSent,
    RequestWanted,
    SessionOpened,
    TurnAppended,
    TurnRecord,
)

log = logging.getLogger("reknit.serve")

# A setting of the worker's own.
_OF_WORKER: Final = frozenset({"expires_after"})
# The next request of the client has the turns of answers. The gateway's healings apply to the worker's request, which
# it never heals itself.
_OF_MIRROR: Final = MappingProxyType({"record_assistant": False, "heal": "on"})


class SentRequest(Struct, frozen=True, kw_only=True):
    """A request that was sent.

    Attributes:
        session: the key of its records.
        endpoint: it was sent to.
        request_id: a random id.
        members: of the client's body.
        sent: the body that the provider received, without content encoding.
        written: the body that Reknit writes for the same history; None if it could not be judged.
        policy: of repair.
        memory: of earlier refusals.
        healings: the refusals that were healed before this request.
        answered: earlier requests that it was written by, as of ``normalize_answered``.
        end: whether a later turn may change its end, if the provider accepted it.
        headers: of the records.
        is_judged: name the rules that the client's body breaks.
    """

    session: str
    endpoint: Endpoint
    request_id: str
    members: dict[str, Raw]
    sent: bytes
    written: bytes | None
    policy: Policy
    memory: TargetMemory = NO_MEMORY
    healings: tuple[str, ...] = ()
    answered: Mapping[int, bool] = NOTHING_ANSWERED
    end: End = ""
    headers: Headers = ()
    is_judged: bool = False


class SessionLogs:
    """Makes the records. It is used by one thread.

    Args:
        metrics: counts the requests whose records cannot be made.
        salt: makes ids of records that no other process makes.
    """

    def __init__(self, metrics: GatewayMetrics, salt: bytes) -> None:
        self._metrics = metrics
        # Set by another thread: sessions with a gap in their records, or that all may have one. The next request of
        # such a session restores its history.
        self.incomplete: set[str] = set()
        self.forgets_all = False
        self._conversations = Conversations(salt=salt, strips_marks=True)

    def records(self, sent: SentRequest) -> list[InputRecord]:
        """Return the records of a request; none if its history cannot be read."""
        if self.forgets_all:
            self.forgets_all = False
            self._conversations.forget_all()
        if sent.session in self.incomplete:
            self.incomplete.discard(sent.session)
            self._conversations.forget(sent.session)
        try:
            return _as_run(sent.request_id, list(self._records(sent)))
        except ReknitError as error:
            reason = error.code
        except Exception as error:  # noqa: BLE001  a fault of Reknit must not stop the journal
            reason = error_name(error)
        log.warning("the turns of a request cannot be published: %s", reason)
        self._metrics.log_incomplete.labels("turns").inc()
        self._conversations.forget(sent.session)
        return []

    def _records(self, sent: SentRequest) -> Iterator[InputRecord]:
        if chains_in(sent.members) or not any(root in sent.members for root in ROOTS):
            self._metrics.log_incomplete.labels("turns").inc()
            return
        target, model = sent.endpoint.target, sent.endpoint.model
        logged = Logged(target=target, body=sent.members, session=sent.session, model=model)
        _, made = self._conversations.records_of(logged)
        for record in made:
            if not isinstance(record, RequestWanted):
                yield self._input(sent, _mirrored(record, sent.policy))
        judged = ((names.JUDGED, logged.judged),) if sent.is_judged else ()
        yield self._input(sent, self._request_sent(sent), judged)

    def _request_sent(self, sent: SentRequest) -> RequestSent:
        written = _written(sent)
        return RequestSent(
            request_id=sent.request_id,
            target=sent.endpoint.target,
            sha256=hashlib.sha256(sent.sent).hexdigest(),
            content_sha256=UNSET if written is None else self._conversations.compared.content_sha256(written),
            healings=sent.healings,
            memory=UNSET if sent.memory == NO_MEMORY else Raw(msgspec.json.encode(sent.memory)),
            answered=tuple(AnsweredRequest(messages=count, continued=end) for count, end in sent.answered.items()),
            end=sent.end or UNSET,
            id=sent.request_id,
            origin=GATEWAY,
        )

    def _input(self, sent: SentRequest, record: TurnRecord, more: Headers = ()) -> InputRecord:
        return InputRecord(AGENT_TURNS, sent.session, msgspec.json.encode(record), (*sent.headers, *more))


def _as_run(request_id: str, records: list[InputRecord]) -> list[InputRecord]:
    """Return the records of a request as one run.

    The next one is sent once the brokers have it. So records are repeated for the last request only, whose ids a worker
    knows: it forgets those of messages that a later record replaces.
    """
    last = len(records) - 1
    return [structs.replace(record, run=request_id, seq=at, ends_run=at == last) for at, record in enumerate(records)]


def _mirrored(record: TurnRecord, policy: Policy) -> TurnRecord:
    match record:
        case SessionOpened():
            return structs.replace(record, policy=_change_of(policy))
        case TurnAppended():
            return structs.replace(record, request=False, origin=GATEWAY)
        case _:
            return record


def _change_of(policy: Policy) -> PolicyChange:
    """Return a change to this policy, so that the worker repairs as the gateway does."""
    members: dict[str, Any] = {
        name: msgspec.to_builtins(getattr(policy, name)) for name in Policy.__struct_fields__ if name not in _OF_WORKER
    }
    return msgspec.convert(members | _OF_MIRROR, PolicyChange)


def _written(sent: SentRequest) -> bytes | None:
    """Return the request as a worker writes it from the log."""
    if sent.written is None or sent.memory == NO_MEMORY:
        return sent.written
    # A healed body is made of the client's.
    done = normalize(sent.sent, sent.endpoint.target, policy=sent.policy, model=sent.endpoint.model or None)
    return done.body
