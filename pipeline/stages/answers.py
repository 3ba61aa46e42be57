"""Published requests, and what providers answered to them.

On the stream side an answer crosses to the session's log, where it finds the request that it is of and is judged.

Only refusals cross, as they are rare and say something of the rules. What is known to no rule, or what a rule should
have found, goes into the dead letters, so that somebody looks at it; nothing is sent again by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

import msgspec
from msgspec import Struct, structs

from pipeline.errors import InputError, ReknitError
from pipeline.rules import Doubt, Refusal, read_refusal
from pipeline.stages.base import Output, Record, Result, dead_letter
from topics import AGENT_TURNS
from topics import headers as names
from topics.records import REKNIT, ProviderAnswered

# A provider's error is a sentence or a few; some repeat what they were given.
_LONGEST_BODY = 16 * 1024
_REFUSED_FROM = 400


# A session's requests that a refusal can still come for, beside the last of each target: a sender breaks off what
# newer ones supersede, so few are on their way at once.
_MOST_OVERTAKEN = 8


class Sent(Struct, frozen=True, array_like=True):
    """The last request that was published for a target.

    ``answered``: an assistant turn came since. ``own_fixes``: how many of the target's settled fixes were told.
    ``doubts`` are the rules that it broke, none of them hard. ``refused``: the provider did, and it was judged why.
    ``mended``: it stood on a fix, or one for the target before it did.
    """

    request_id: str
    sha256: str
    answered: bool = False
    own_fixes: int = 0
    doubts: tuple[Doubt, ...] = ()
    refused: bool = False
    mended: bool = False


class SentRequests(Struct):
    """What a session remembers of its requests.

    ``last`` is that of each target; ``overtaken`` are those, with their targets, that newer ones superseded since the
    assistant's last turn.
    """

    last: dict[str, Sent] = {}
    overtaken: list[tuple[str, Sent]] = []

    def note_sent(self, target: str, sent: Sent) -> None:
        last = self.last.get(target)
        if last is not None and not last.answered and not last.refused:
            self.overtaken = [*self.overtaken, (target, last)][-_MOST_OVERTAKEN:]
        self.last[target] = sent

    def note_answered(self) -> None:
        """An assistant turn came: the requests before it are not superseded by the next ones."""
        self.last = {target: structs.replace(last, answered=True) for target, last in self.last.items()}
        self.overtaken = []

    def find(self, request_id: str) -> tuple[str, Sent] | None:
        """A request of late, with its target."""
        return next((each for each in self._all() if each[1].request_id == request_id), None)

    def note_refused(self, request_id: str) -> None:
        self.last = {target: _refused(sent, request_id) for target, sent in self.last.items()}
        self.overtaken = [(target, _refused(sent, request_id)) for target, sent in self.overtaken]

    def _all(self) -> Iterator[tuple[str, Sent]]:
        return chain(self.last.items(), self.overtaken)


def _refused(sent: Sent, request_id: str) -> Sent:
    return structs.replace(sent, refused=True) if sent.request_id == request_id else sent


class RefusedError(ReknitError):
    """The provider refused a published request. The message is the provider's own."""

    fault = "us"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(f"refused_{refusal.outcome}", refusal.message, rule=refusal.rule or None)


def crossing(record: Record, headers: Mapping[str, bytes]) -> Output | None:
    """The record for the session's log, where an event is a provider's refusal of a published request.

    Raises:
        InputError: its status is none.
    """
    status = headers.get(names.STATUS)
    if status is None or not record.value or names.REQUEST_ID not in headers:
        return None
    if not (status.isdigit() and len(status) == 3):
        raise InputError("bad_status", "header `status` is no HTTP status")
    if int(status) < _REFUSED_FROM:
        return None
    answered = ProviderAnswered(
        request_id=headers[names.REQUEST_ID].decode("utf-8", "replace"),
        status=int(status),
        body=record.value.decode("utf-8", "replace")[:_LONGEST_BODY],
        origin=REKNIT,
    )
    return Output(AGENT_TURNS, record.key, msgspec.json.encode(answered))


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
    refusal = read_refusal(target, event.status, event.body, sent.doubts)
    tally["reknit_provider_refusals_total", target, refusal.outcome, refusal.rule] += 1
    if refusal.outcome != "not_shape":  # which may pass, so that a later answer says more
        requests.note_refused(event.request_id)
        error = RefusedError(refusal)
        letter = dead_letter(record, AGENT_TURNS, error)
        beside = ((names.ERROR_TARGET, target.encode()), (names.ERROR_BODY_SHA256, sent.sha256.encode()))
        result.outputs.append(structs.replace(letter, headers=(*letter.headers, *beside)))
        tally["reknit_dead_letters_total", AGENT_TURNS, error.code] += 1
    return True
