"""Requests of the history side: which ones are sent, their fixes, each published once, and the providers' answers.

A provider's answer reaches the session's log, where it is matched with its request and judged. Only refusals are copied
there, because they are rare and can show errors in the rules. A refusal that no rule knows, or that a rule should have
foreseen, becomes a dead letter for a person to examine; nothing is sent again automatically.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, structs

from reknit.pipeline import __version__
from reknit.pipeline.errors import InputError, ReknitError
from reknit.pipeline.fixes import Fix, name_where_not_shared
from reknit.pipeline.healing.errors import read_error
from reknit.pipeline.healing.memory import NO_MEMORY, TargetMemory
from reknit.pipeline.healing.table import may_pass
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.rules.refusals import Doubt, Refusal, read_refusal
from reknit.pipeline.rules.sets import RULES
from reknit.pipeline.session import Normalized
from reknit.pipeline.stages.base import Output, Record, Result, dead_letter, passed_on, place_of
from reknit.pipeline.stages.content import content_sha256
from reknit.pipeline.stages.event_records import EventDetails
from reknit.pipeline.stages.turn_state import Sent, SentRequests, TurnState
from reknit.topics import AGENT_TURNS, HISTORY_FIXES, PROVIDER_EVENTS, PROVIDER_REQUESTS
from reknit.topics import headers as names
from reknit.topics.records import REKNIT, FixRecord, ProviderAnswered, RequestSent
from reknit.topics.trace import trace_of

# Why a request is due; `reknit.topics.headers.RequestHeaders` says what each means.
Reason: TypeAlias = Literal["turn", "interrupted", "wanted", "healed", "sent"]


# A provider's error is a sentence or a few; some repeat what they were given.
_LONGEST_BODY = 16 * 1024
REFUSED_FROM = 400
"""The statuses of refusals."""
# The digest of the empty body of a withdrawal.
_NOTHING = hashlib.sha256(b"").hexdigest()


class RejectedError(ReknitError):
    """The history cannot be repaired into a request that the target accepts. The message is the provider's own."""

    fault = "caller"

    def __init__(self, target: str, violation: Violation) -> None:
        super().__init__("rejected", f"{target}: {violation.message}", path=violation.path, rule=violation.rule)


class FixPublisher(Struct):
    """Publishes the fixes that one source record led to, in their order."""

    record: Record
    result: Result
    tally: Counter[tuple[str, ...]]
    numbered: int = 0

    def publish_fix(self, fix: Fix, turn: int, *, request_id: str = "", source: str = "") -> None:
        """Publish a fix and count it. ``turn`` is how many the session has; see ``FixRecord`` for the rest."""
        fix_record = FixRecord(
            code=fix.code,
            path=fix.path,
            lossless=fix.lossless,
            turn=turn,
            offset=self.record.offset,
            base=self.record.base,
            number=self.numbered,
            version=__version__,
            target="" if source else fix.target,
            detail=fix.detail,
            before=fix.before,
            after=fix.after,
            request_id=request_id,
            source=source,
            id=fix.id,
            observed=fix.observed,
        )
        self.numbered += 1
        self.result.outputs.append(
            Output(HISTORY_FIXES, self.record.key, msgspec.json.encode(fix_record), passed_on(self.record))
        )
        if fix.observed:
            self.tally["reknit_fixes_observed_total", fix.code, fix.target] += 1
            return
        self.tally["reknit_fixes_total", fix.code, fix.target] += 1
        producer = names.find_text(self.record.headers, names.PRODUCER) or ""
        self.tally["reknit_producer_fixes_total", producer, fix.code] += 1
        if not fix.lossless:
            self.tally["reknit_fixes_lossy_total", fix.code, fix.target] += 1


def publish_stream_fixes(
    fixes: Sequence[Fix],
    record: Record,
    turns: int,
    result: Result,
    tally: Counter[tuple[str, ...]],
    *,
    request_id: str = "",
) -> None:
    """Publish what a record of events led to; a fix's target is the source, ``turns`` are those finished so far.

    ``request_id`` is of the request that the events answer, if it is known.
    """
    publisher = FixPublisher(record, result, tally)
    for fix in fixes:
        publisher.publish_fix(fix, turns, request_id=request_id, source=fix.target)


class Publisher:
    """Puts out what one source record leads to."""

    def __init__(
        self, key: bytes, entry: TurnState, record: Record, result: Result, tally: Counter[tuple[str, ...]]
    ) -> None:
        self._key = key
        self._entry = entry
        self._record = record
        self._result = result
        self._tally = tally
        self._fixes = FixPublisher(record, result, tally)

    def certain(self, fixes: Iterable[Fix]) -> None:
        """Publish fixes that are certain, unless they were published with a request."""
        for fix in fixes:
            if not self._is_reported(fix):
                self._fixes.publish_fix(fix, self._entry.turn)
            self._entry.reported.discard(_identity(fix))

    def requests(self, reason: Reason) -> None:
        """Publish a request for each target whose body has changed, or for each that was asked for."""
        session = self._entry.session
        made = {target: session.request(target) for target in session.targets}
        opened = name_where_not_shared({target: done.open_fixes for target, done in made.items()})
        still_open: set[str] = set()
        for target, done in made.items():
            # Whether a watched repair was made can change with each request, settled or not.
            open_fixes = [*opened[target], *done.watched]
            self._request(done, open_fixes, reason)
            # One that all targets needed may be certain for some of them while it is still open for the others.
            still_open.update(identity for fix in open_fixes for identity in _identities(fix))
        self._entry.reported &= still_open

    def healed(self, done: Normalized, refused: str) -> None:
        """Publish the request of a target without the cause for which its provider refused the last one."""
        session = self._entry.session
        made = {target: session.request(target, is_sent=False).open_fixes for target in session.targets}
        opened = name_where_not_shared(made | {done.target: done.open_fixes})
        self._request(done, [*opened[done.target], *done.watched], "healed", heals=refused)

    def sent(self, event: RequestSent) -> None:
        """Publish the request that a gateway has sent. Nothing is sent again, and it is never healed."""
        session = self._entry.session
        made = {target: session.request(target, is_sent=False) for target in session.targets}
        done = made[event.target]
        opened = name_where_not_shared({target: each.open_fixes for target, each in made.items()})
        self._request(done, [*opened[done.target], *done.watched], "sent", event=event)
        if event.content_sha256 is UNSET or (event.answered and not session.has_answered):
            return
        if event.content_sha256 != content_sha256(done.unjudged):
            self._tally["reknit_gateway_mismatch_total", done.target] += 1

    def count_healed(self, outcome: Literal["accepted", "refused"], request_id: str | None = None) -> None:
        """Count the outcome of the healings that led to a request, or of all that wait for it."""
        for target, row in self._entry.session.take_outcomes(request_id):
            self._tally["reknit_healed_total", target, row, outcome] += 1

    def _request(
        self,
        done: Normalized,
        open_fixes: Sequence[Fix],
        reason: Reason,
        *,
        heals: str = "",
        event: RequestSent | None = None,
    ) -> None:
        last = self._entry.sent.last.get(done.target)
        refused = _refused(done)
        if refused is not None:
            self._reject(done.target, refused)
            return
        # If the answer left no turn in the history, the agent waits for the same body again.
        same = last is not None and last.sha256 == done.sha256 and not last.answered
        if same and reason not in {"wanted", "sent"}:
            return
        request_id = self._request_id(done.target) if event is None else event.request_id
        self._result.outputs.append(self._output(done, request_id, reason, last, heals=heals, event=event))
        if heals:
            self._entry.session.note_healed(done.target, request_id)
        self._entry.session.note_published(done.target, request_id)
        doubts = _doubts(done)
        was_repaired = last is not None and last.mended
        mended = was_repaired or done.fix_count > 0
        self._entry.sent.note_sent(
            done.target,
            Sent(
                request_id,
                done.sha256,
                own_fixes=done.own_fix_count,
                doubts=doubts,
                mended=mended,
                by_gateway=event is not None,
            ),
        )
        if mended and not was_repaired:
            self._tally["reknit_sessions_mended_total", done.target] += 1
        known = 0 if last is None or done.reset else last.own_fixes
        # The repairs of the request that no record has published yet.
        for fix in done.own_fixes(known):
            self._report_once(fix, request_id, remember=False)
        for fix in open_fixes:
            self._report_once(fix, request_id, remember=True)
        self._count(done)
        for rule in dict.fromkeys(doubt.rule for doubt in doubts):
            self._tally["reknit_requests_doubted_total", done.target, rule] += 1

    def _output(
        self,
        done: Normalized,
        request_id: str,
        reason: Reason,
        last: Sent | None,
        *,
        heals: str,
        event: RequestSent | None,
    ) -> Output:
        """The request as a record. Its body is joined here and nowhere else."""
        entry, record = self._entry, self._record
        model = entry.session.model
        superseded = last is not None and not last.answered and last.request_id != request_id
        described = names.RequestHeaders(
            request_id=request_id,
            target=done.target,
            turn=entry.turn,
            fixes=done.fix_count,
            body_sha256=done.sha256,
            prefix_bytes=done.prefix_bytes,
            reknit_version=__version__,
            cause=place_of(record, AGENT_TURNS),
            reason=reason,
            heals=heals or UNSET,
            sent=UNSET if event is None else event.sha256,
            first=UNSET if entry.first is None else entry.first,
            base=record.base or UNSET,
            prefix_reset=done.prefix_reset if done.prefix_reset and last is not None else UNSET,
            # The body has it too, however long it is.
            model=UNSET if model is None or len(model.encode()) > names.LONGEST_VALUE else model,
            supersedes=last.request_id if last is not None and superseded else UNSET,
        )
        return Output(PROVIDER_REQUESTS, self._key, done.body, (*names.encode(described), *passed_on(record)))

    def withdraw(self) -> None:
        """Withdraw the published requests that no assistant turn has answered so far.

        A withdrawal has no body, and a request id of its own. A sender that only knows ``supersedes`` drops the request
        too.
        """
        for target, sent in self._entry.sent.unanswered():
            if sent.by_gateway:
                continue
            described = names.WithdrawalHeaders(
                request_id=self._request_id(target, "answered"),
                target=target,
                turn=self._entry.turn,
                fixes=0,
                body_sha256=_NOTHING,
                prefix_bytes=0,
                reknit_version=__version__,
                cause=place_of(self._record, AGENT_TURNS),
                reason="answered",
                first=UNSET if self._entry.first is None else self._entry.first,
                base=self._record.base or UNSET,
                supersedes=sent.request_id,
            )
            headers = (*names.encode(described), *passed_on(self._record))
            self._result.outputs.append(Output(PROVIDER_REQUESTS, self._key, None, headers))
            self._tally["reknit_requests_withdrawn_total", target] += 1

    def _request_id(self, target: str, *more: str) -> str:
        """The same for a record that is processed again, and for no other request."""
        entry = self._entry
        place: tuple[object, ...] = (self._key, entry.first, entry.turn, target, entry.wanted, *more)
        if entry.first is None and not entry.wanted and not more:
            # A session of 0.1.0 keeps the ids that it had, so that a redelivery after the upgrade is seen as one.
            place = (self._key, entry.turn, target)
        if healings := entry.session.healings(target):
            place = (*place, healings)
        return hashlib.sha256(msgspec.msgpack.encode(place)).hexdigest()[:32]

    def _reject(self, target: str, violation: Violation) -> None:
        self._result.outputs.append(dead_letter(self._record, AGENT_TURNS, RejectedError(target, violation)))
        self._tally["reknit_requests_total", target, "rejected"] += 1
        self._tally["reknit_rejections_total", target, violation.rule] += 1
        self._tally["reknit_dead_letters_total", AGENT_TURNS, "rejected"] += 1

    def _count(self, done: Normalized) -> None:
        size = len(done.body or b"")
        outcome = "mended" if done.fix_count else "clean"
        self._tally["reknit_requests_total", done.target, outcome] += 1
        self._tally["reknit_request_bytes", done.target, str(size)] += 1
        self._tally["reknit_request_written_bytes_total", done.target] += size
        self._tally["reknit_prefix_kept_bytes_total", done.target] += done.prefix_bytes
        if done.prefix_reset:
            self._tally["reknit_prefix_resets_total", done.prefix_reset.partition(";")[0]] += 1

    # Fixes.

    def _report_once(self, fix: Fix, request_id: str, *, remember: bool) -> None:
        if not self._is_reported(fix):
            self._fixes.publish_fix(fix, self._entry.turn, request_id=request_id)
        if remember:
            self._entry.reported.add(_identity(fix))
        else:
            self._entry.reported.discard(_identity(fix))

    def _is_reported(self, fix: Fix) -> bool:
        return not self._entry.reported.isdisjoint(_identities(fix))


def memory_of(event: RequestSent) -> TargetMemory:
    """Return the gateway's memory of refusals.

    Raises:
        InputError: ``bad_memory``.
    """
    if event.memory is UNSET:
        return NO_MEMORY
    try:
        memory = msgspec.json.decode(event.memory, type=TargetMemory)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("bad_memory", f"the memory of refusals cannot be read: {error}", path="memory") from error
    if not memory.is_whole():
        raise InputError("bad_memory", "the memory of refusals names healings that it does not have", path="memory")
    return memory


def _refused(done: Normalized) -> Violation | None:
    """Return why the request must not be sent: a rule that it breaks, or a parameter that no sender can add."""
    for violation in done.violations:
        if violation.severity == "hard" or RULES[violation.rule].by_sender:
            return violation
    return None


# As many as a refusal has been seen to name at once, and more; each is the rule's sentence with an id or two.
_MOST_DOUBTS, _LONGEST_DOUBT = 8, 300


def _doubts(done: Normalized) -> tuple[Doubt, ...]:
    """Return the violations of a request that is published despite them."""
    found = dict.fromkeys((violation.rule, violation.message) for violation in done.violations)
    return tuple(Doubt(rule, message[:_LONGEST_DOUBT]) for rule, message in islice(found, _MOST_DOUBTS))


def _identity(fix: Fix) -> str:
    """Return an identity of one repair, equal for publication with a request and alone."""
    observed = " observed" if fix.observed else ""
    return f"{fix.code} {fix.path} {fix.target} {fix.before} {fix.after}{observed}"


def _identities(fix: Fix) -> tuple[str, str]:
    """Return the identities under which a repair may have been published: for its target, or for all targets."""
    return _identity(fix), _identity(structs.replace(fix, target=""))


# Answers.


class RefusedError(ReknitError):
    """The provider refused a published request. The message is the provider's own."""

    fault = "us"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"refused_{refusal.outcome}", refusal.message, rule=refusal.rule or None)


def crossing(record: Record, details: EventDetails) -> Output | None:
    """The record for the session's log, where an event is a provider's refusal of a published request.

    It has the trace of the event, so that a healed request belongs to the trace of the refused one.
    """
    status, request_id = details.status, details.request_id
    if status is None or request_id is None or not record.value or status < REFUSED_FROM:
        return None
    body = record.value.decode("utf-8", "replace")[:_LONGEST_BODY]
    answered = ProviderAnswered(
        request_id=request_id,
        status=status,
        body=body,
        # The second of two attempts is healed, and one that is delivered twice is not two.
        id=place_of(record, PROVIDER_EVENTS) if may_pass(read_error(status, body)) else UNSET,
        origin=REKNIT,
    )
    return Output(AGENT_TURNS, record.key, msgspec.json.encode(answered), trace_of(record.headers))


def judge_answer(
    requests: SentRequests, event: ProviderAnswered, record: Record, result: Result, tally: Counter[tuple[str, ...]]
) -> bool:
    """Count a provider's refusal by what decided it; False where it was judged before, as one that came twice."""
    found = requests.find(event.request_id)
    if found is None:
        tally["reknit_provider_refusals_total", "", "unmatched", ""] += 1
        return True
    target, sent = found
    if sent.refused:
        return False
    known = TARGETS.get(target)
    refusal = read_refusal(known.catalogue if known else None, event.status, event.body, sent.doubts)
    tally["reknit_provider_refusals_total", target, refusal.outcome, refusal.rule] += 1
    if refusal.outcome != "not_shape":  # which may pass, so that a later answer says more
        requests.note_refused(event.request_id)
        error = RefusedError(refusal)
        letter = dead_letter(record, AGENT_TURNS, error)
        extra_headers = ((names.ERROR_TARGET, target.encode()), (names.ERROR_BODY_SHA256, sent.sha256.encode()))
        result.outputs.append(structs.replace(letter, headers=(*letter.headers, *extra_headers)))
        tally["reknit_dead_letters_total", AGENT_TURNS, error.code] += 1
    return True
