"""The status of a session on the history side, and the step that each kind of record leads to in it.

A session has exactly one status at a record. The table has a step for every pair of status and kind, so a new status or
a new record type cannot be forgotten. The stage executes the steps (``reknit.pipeline.stages.turns``).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from reknit.topics.records import (
    HistoryRestored,
    ProviderAnswered,
    SessionClosed,
    SessionForgotten,
    SessionOpened,
    SessionReleased,
    TurnRecord,
)


class Status(Enum):
    LIVE = "live"  # also a session without any state: its next record begins it
    QUARANTINED = "quarantined"  # an earlier record is in the dead letters, and its later records follow
    PARKED = "parked"  # an earlier record is in the dead letters, and its later records wait
    RELEASING = "releasing"  # the waiting records are being taken; records from the log wait for their turn
    EXPIRED = "expired"
    FORGOTTEN = "forgotten"


class Kind(Enum):
    UNREADABLE = "unreadable"  # the record cannot be decoded
    OPENED = "opened"
    RESTORED = "restored"
    ANSWERED = "answered"
    RELEASED = "released"
    CLOSED = "closed"
    FORGOTTEN = "forgotten"
    OTHER = "other"  # changes an existing history, or asks for a request


class Step(Enum):
    TAKE = "take"  # apply the record to the session
    JUDGE = "judge"  # compare a provider's refusal with the rules
    END = "end"  # free the session's state
    RELEASE = "release"  # take the repaired record; the waiting records are due from now on
    WAIT = "wait"  # keep the record until the session is released
    QUEUE = "queue"  # keep the record until the release has come to it
    REFUSE_UNREADABLE = "refuse unreadable"
    REFUSE_QUARANTINED = "refuse quarantined"
    REFUSE_ENDED = "refuse ended"


KINDS: Final[dict[type, Kind]] = {
    SessionOpened: Kind.OPENED,
    HistoryRestored: Kind.RESTORED,
    ProviderAnswered: Kind.ANSWERED,
    SessionReleased: Kind.RELEASED,
    SessionClosed: Kind.CLOSED,
    SessionForgotten: Kind.FORGOTTEN,
}

# A session that cannot be read can be closed and forgotten in every status.
STEPS: Final[dict[tuple[Status, Kind], Step]] = {
    (Status.LIVE, Kind.UNREADABLE): Step.REFUSE_UNREADABLE,
    (Status.LIVE, Kind.OPENED): Step.TAKE,
    (Status.LIVE, Kind.RESTORED): Step.TAKE,
    (Status.LIVE, Kind.ANSWERED): Step.JUDGE,
    (Status.LIVE, Kind.RELEASED): Step.TAKE,  # refused there, unless it was taken before
    (Status.LIVE, Kind.CLOSED): Step.END,
    (Status.LIVE, Kind.FORGOTTEN): Step.END,
    (Status.LIVE, Kind.OTHER): Step.TAKE,
    (Status.QUARANTINED, Kind.UNREADABLE): Step.REFUSE_UNREADABLE,
    (Status.QUARANTINED, Kind.OPENED): Step.REFUSE_QUARANTINED,
    (Status.QUARANTINED, Kind.RESTORED): Step.TAKE,  # the whole history is replaced, so nothing is missing
    (Status.QUARANTINED, Kind.ANSWERED): Step.JUDGE,
    (Status.QUARANTINED, Kind.RELEASED): Step.REFUSE_QUARANTINED,
    (Status.QUARANTINED, Kind.CLOSED): Step.END,
    (Status.QUARANTINED, Kind.FORGOTTEN): Step.END,
    (Status.QUARANTINED, Kind.OTHER): Step.REFUSE_QUARANTINED,
    (Status.PARKED, Kind.UNREADABLE): Step.WAIT,  # refused once its turn has come
    (Status.PARKED, Kind.OPENED): Step.WAIT,
    (Status.PARKED, Kind.RESTORED): Step.WAIT,
    (Status.PARKED, Kind.ANSWERED): Step.WAIT,
    (Status.PARKED, Kind.RELEASED): Step.RELEASE,
    (Status.PARKED, Kind.CLOSED): Step.WAIT,
    (Status.PARKED, Kind.FORGOTTEN): Step.END,
    (Status.PARKED, Kind.OTHER): Step.WAIT,
    (Status.RELEASING, Kind.UNREADABLE): Step.QUEUE,
    (Status.RELEASING, Kind.OPENED): Step.QUEUE,
    (Status.RELEASING, Kind.RESTORED): Step.QUEUE,
    (Status.RELEASING, Kind.ANSWERED): Step.QUEUE,
    (Status.RELEASING, Kind.RELEASED): Step.QUEUE,  # the session may be parked again by then
    (Status.RELEASING, Kind.CLOSED): Step.QUEUE,
    (Status.RELEASING, Kind.FORGOTTEN): Step.END,
    (Status.RELEASING, Kind.OTHER): Step.QUEUE,
    (Status.EXPIRED, Kind.UNREADABLE): Step.REFUSE_ENDED,
    (Status.EXPIRED, Kind.OPENED): Step.TAKE,  # begins the session again
    (Status.EXPIRED, Kind.RESTORED): Step.TAKE,  # as above
    (Status.EXPIRED, Kind.ANSWERED): Step.REFUSE_ENDED,
    (Status.EXPIRED, Kind.RELEASED): Step.REFUSE_ENDED,
    (Status.EXPIRED, Kind.CLOSED): Step.REFUSE_ENDED,
    (Status.EXPIRED, Kind.FORGOTTEN): Step.END,
    (Status.EXPIRED, Kind.OTHER): Step.REFUSE_ENDED,
    (Status.FORGOTTEN, Kind.UNREADABLE): Step.REFUSE_ENDED,
    (Status.FORGOTTEN, Kind.OPENED): Step.REFUSE_ENDED,
    (Status.FORGOTTEN, Kind.RESTORED): Step.REFUSE_ENDED,
    (Status.FORGOTTEN, Kind.ANSWERED): Step.REFUSE_ENDED,
    (Status.FORGOTTEN, Kind.RELEASED): Step.REFUSE_ENDED,
    (Status.FORGOTTEN, Kind.CLOSED): Step.REFUSE_ENDED,
    (Status.FORGOTTEN, Kind.FORGOTTEN): Step.END,
    (Status.FORGOTTEN, Kind.OTHER): Step.REFUSE_ENDED,
}


def kind_of(event: TurnRecord | None) -> Kind:
    """Return the kind of a decoded record; None is a record that cannot be decoded."""
    return Kind.UNREADABLE if event is None else KINDS.get(type(event), Kind.OTHER)
