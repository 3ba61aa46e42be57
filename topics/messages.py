"""Which records each topic holds: the table from which schemas and the AsyncAPI document are made."""

from __future__ import annotations

from typing import Any, get_args

from msgspec import Struct

from topics import headers
from topics.declarations import (
    AGENT_TURNS,
    DEAD_LETTERS,
    HISTORY_FIXES,
    PROVIDER_EVENTS,
    PROVIDER_REQUESTS,
    SESSION_ITEMS,
)
from topics.items import AnyItem
from topics.records import FixRecord, TurnRecord


class Message(Struct, frozen=True, kw_only=True):
    """One kind of record of a topic.

    ``payload`` is the struct that its JSON value decodes to, None where the value is bytes of somebody else's
    (``null`` says that there is no value at all); ``headers`` the struct of its headers, if it has any.
    """

    name: str
    topic: str
    summary: str
    payload: Any = None
    null: bool = False
    headers: type[Struct] | None = None


def summary_of(struct: type[Struct]) -> str:
    """The first line of a struct's docstring."""
    return (struct.__doc__ or "").partition("\n")[0]


def _of_union(topic: str, union: object, headers: type[Struct]) -> tuple[Message, ...]:
    return tuple(
        Message(name=struct.__name__, topic=topic, summary=summary_of(struct), payload=struct, headers=headers)
        for struct in get_args(union)
    )


MESSAGES: tuple[Message, ...] = (
    *_of_union(AGENT_TURNS, TurnRecord, headers.TurnHeaders),
    Message(
        name="ProviderEvents",
        topic=PROVIDER_EVENTS,
        summary="The provider's bytes as received, whole events separated by newlines unless `framing` says otherwise.",
        headers=headers.EventHeaders,
    ),
    Message(
        name="EndOfRun",
        topic=PROVIDER_EVENTS,
        summary="The run is over; what it left open is completed as incomplete.",
        null=True,
        headers=headers.EndOfRunHeaders,
    ),
    Message(
        name="SessionPolicy",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: what the stream side acts on of a session's policy.",
        null=True,
        headers=headers.PolicyHeaders,
    ),
    Message(
        name="SessionEnd",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: the session's log closed it, and the stream side forgets it.",
        null=True,
        headers=headers.ClosedHeaders,
    ),
    Message(
        name="SessionForgetting",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: the session is to be forgotten, and the stream side forgets it.",
        null=True,
        headers=headers.ForgottenHeaders,
    ),
    Message(
        name="SessionExpiry",
        topic=PROVIDER_EVENTS,
        summary="Written by the worker itself: the session was silent for too long, and the stream side forgets it.",
        null=True,
        headers=headers.ExpiredHeaders,
    ),
    Message(
        name="Request",
        topic=PROVIDER_REQUESTS,
        summary="A request body, byte for byte what is to be sent.",
        headers=headers.RequestHeaders,
    ),
    *_of_union(SESSION_ITEMS, AnyItem, headers.ItemHeaders),
    Message(
        name="FixRecord",
        topic=HISTORY_FIXES,
        summary=summary_of(FixRecord),
        payload=FixRecord,
        headers=headers.FixHeaders,
    ),
    Message(
        name="DeadLetter",
        topic=DEAD_LETTERS,
        summary="A record as it came, key, value and headers, with the error's headers added.",
        headers=headers.DeadLetterHeaders,
    ),
)
