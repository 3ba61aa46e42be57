"""The answers of ``reknit screens``: a session in a format, and the answer to a user's message."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from aiohttp import web
from msgspec import Struct, structs

from reknit.pipeline.errors import InputError
from reknit.pipeline.screen_server.access import Grant
from reknit.pipeline.screen_server.bodies import Message, Posted, posted_in, turn_in
from reknit.pipeline.screen_server.connections import Connection, Plan, refuse_old_versions, send
from reknit.pipeline.screen_server.feeds import Feed, Feeds
from reknit.pipeline.screen_server.formats import DONE, AiSdkWriter, Format, frame
from reknit.pipeline.screen_server.gate import Gate, no_session
from reknit.pipeline.screen_server.records import Records
from reknit.pipeline.screen_server.words import Words
from reknit.pipeline.viewer.addresses import SESSION, session_of
from reknit.pipeline.viewer.live import NOWHERE, last_seen

# An answer that ended this long ago is not sent to a client that resumes: it has the answer.
RECENT_SECONDS: Final = 60.0
# How long an answer to a user's message may take to begin.
ANSWER_SECONDS: Final = 120.0
# The age at which a stream ends is spread, so that not all clients resume at once.
_SPREAD: Final = 0.2
_AI_SDK_HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
_FORMATS: Final[dict[str, Format]] = {"ag-ui": "ag-ui", "ai-sdk": "ai-sdk", "items": "items"}


class Screens(Struct, frozen=True):
    """The state of one server.

    Attributes:
        gate: the checks of requests.
        feeds: the sessions with connections.
        records: reads the items of sessions.
        words: writes the users' words; None for a server that only shows.
        answer_seconds: how long an answer to these may take to begin.
        recent_seconds: how long an answer that has ended is sent to a client that resumes.
    """

    gate: Gate
    feeds: Feeds
    records: Records
    words: Words | None = None
    answer_seconds: float = ANSWER_SECONDS
    recent_seconds: float = RECENT_SECONDS


SCREENS: web.AppKey[Screens] = web.AppKey("screens", Screens)


class _View(Struct, frozen=True):
    """A session in a format, as a client with these messages asks for it."""

    session: str
    form: Format
    posted: Posted


def _format_of(request: web.Request, default: Format) -> Format:
    """Return the format that a request names, as ``?as=``, or as a profile of the type that it accepts.

    Raises:
        InputError: ``format_unknown``.
    """
    named = request.query.get("as")
    if named is None:
        accepted = request.headers.get("Accept", "")
        named = next((name for name in _FORMATS if f"profile={name}" in accepted.replace('"', "")), default)
    if named not in _FORMATS:
        raise InputError("format_unknown", f"there is no such format: one of {', '.join(_FORMATS)}")
    return "ai-sdk-6" if named == "ai-sdk" and request.query.get("ai-sdk") == "6" else _FORMATS[named]


async def _events(request: web.Request) -> web.StreamResponse:
    """Serve a session without end, in any format."""
    screens, session = request.app[SCREENS], session_of(request)
    refuse_old_versions(request)
    form = _format_of(request, "items")
    grant = await screens.gate.grant(request, session)
    plan = Plan(headers=_AI_SDK_HEADERS if form.startswith("ai-sdk") else {})
    with screens.gate.stream(session, grant):
        async with screens.feeds.watching(session, form) as feed:
            if feed.position == NOWHERE:
                raise no_session()
            return await _joined(request, feed, plan, grant)


async def _joined(
    request: web.Request, feed: Feed, plan: Plan, grant: Grant, posted: Posted | None = None
) -> web.StreamResponse:
    """Send the current state of a feed and what follows. Nothing may wait between both."""
    screens = request.app[SCREENS]
    connection = Connection(plan)
    feed.connections.add(connection)
    try:
        if feed.form == "items":
            entries = await screens.records.after(feed.session, last_seen(request))
            first = b"retry: 2000\n\n" + b"".join(piece.data for each in entries for piece in feed.writer.take(each))
        else:
            first = b"".join(piece.data for piece in feed.writer.resume(_ids(posted)))
            connection.is_over = plan.to_end and not feed.writer.is_running
        return await send(request, connection, plan, first, _end_of(screens.gate, grant))
    finally:
        feed.connections.discard(connection)


def _ids(posted: Posted | None) -> list[tuple[str, str]]:
    return [] if posted is None else [(message.id, message.role) for message in posted.messages]


def _end_of(gate: Gate, grant: Grant) -> float:
    """Return the time of the loop at which a stream ends: its token expires, or it is old."""
    age = gate.limits.stream_seconds * (1 - _SPREAD * random.random())  # noqa: S311  spreads load
    left = age if grant.until is None else min(age, max(0.0, grant.until - time.time()))
    return asyncio.get_running_loop().time() + left


async def _stream(request: web.Request) -> web.StreamResponse:
    """Serve the answer that is open, in the form in which clients of the AI SDK resume."""
    screens, session = request.app[SCREENS], session_of(request)
    refuse_old_versions(request)
    grant = await screens.gate.grant(request, session)
    form: Format = "ai-sdk-6" if request.query.get("ai-sdk") == "6" else "ai-sdk"
    plan = Plan(to_end=True, last=DONE, headers=_AI_SDK_HEADERS)
    with screens.gate.stream(session, grant):
        async with screens.feeds.watching(session, form) as feed:
            is_recent = time.time() * 1000 - feed.time_ms < screens.recent_seconds * 1000
            if not feed.writer.is_running and not (is_recent and feed.writer.resume()):
                return web.Response(status=204)
            return await _joined(request, feed, plan, grant)


async def _messages(request: web.Request) -> web.Response:
    """Return all messages of a session, for a client of the AI SDK that begins."""
    screens, session = request.app[SCREENS], session_of(request)
    await screens.gate.grant(request, session)
    form: Format = "ai-sdk-6" if request.query.get("ai-sdk") == "6" else "ai-sdk"
    async with screens.feeds.watching(session, form) as feed:
        if not isinstance(feed.writer, AiSdkWriter):
            raise TypeError
        return web.Response(body=feed.writer.messages(), content_type="application/json")


async def _run(request: web.Request) -> web.StreamResponse:
    """Serve a client of AG-UI: the answer that is open, or the answer to its new message."""
    session = session_of(request)
    grant = await request.app[SCREENS].gate.grant(request, session)
    posted = await posted_in(request)
    if posted.thread_id not in {"", session}:
        raise InputError("bad_body", "the thread of the body is not that of the address")
    return await _answered(request, grant, _View(session, "ag-ui", posted))


async def _chat(request: web.Request) -> web.StreamResponse:
    """Serve a client of the AI SDK that sends a message; the session is in the body."""
    gate = request.app[SCREENS].gate
    visitor = gate.identify(request)  # before the body is read
    posted = await posted_in(request)
    form: Format = "ai-sdk-6" if request.query.get("ai-sdk") == "6" else "ai-sdk"
    grant = await gate.grant(request, posted.id, visitor)
    return await _answered(request, grant, _View(posted.id, form, posted))


async def _answered(request: web.Request, grant: Grant, view: _View) -> web.StreamResponse:
    screens, session, form, posted = request.app[SCREENS], view.session, view.form, view.posted
    refuse_old_versions(request)
    new = posted.new_message()
    plan = Plan(to_end="follow" not in request.query)
    if form != "ag-ui":
        plan = structs.replace(plan, to_end=True, last=DONE, headers=_AI_SDK_HEADERS)
        if new is None or posted.trigger == "regenerate-message":
            raise web.HTTPConflict(text="Only a new message can be answered.\n")
    with screens.gate.stream(session, grant):
        async with screens.feeds.watching(session, form) as feed:
            is_answered = None if new is None else feed.writer.answers(new.id)
            if new is None or is_answered:
                if feed.position == NOWHERE and screens.words is None:
                    raise no_session()
                return await _joined(request, feed, plan, grant, posted)
            if screens.words is None or not grant.can_write:
                raise web.HTTPConflict(text="This session is shown, and takes no messages here.\n")
            # A message that was sent before is not written again; its answer has not begun.
            if is_answered is None:
                return await _asked(request, feed, plan, grant, new)
            return await _asked(request, feed, plan, grant, None)


async def _asked(
    request: web.Request, feed: Feed, plan: Plan, grant: Grant, message: Message | None
) -> web.StreamResponse:
    """Write a user's message, if there is one, and send the answer that begins after it."""
    screens = request.app[SCREENS]
    late = _too_late(feed)
    plan = structs.replace(plan, from_begin=True, begin_seconds=screens.answer_seconds, too_late=late)
    connection = Connection(plan)
    feed.connections.add(connection)
    try:
        if message is not None and screens.words is not None:
            await screens.words.write(feed.session, message.id, turn_in(message), trace=request.headers)
        return await send(request, connection, plan, b"", _end_of(screens.gate, grant))
    finally:
        feed.connections.discard(connection)


def _too_late(feed: Feed) -> bytes:
    """Return the frames for a client that gets no answer."""
    words = "No answer began in time. The message was taken, and the answer may still come."
    if feed.form == "ag-ui":
        return frame({"type": "RUN_ERROR", "message": words, "code": "answer_timeout"})
    return frame({"type": "error", "errorText": words})


ROUTES: Final = [
    web.get(f"{SESSION}/events", _events),
    web.get(f"{SESSION}/stream", _stream),
    web.get(f"{SESSION}/messages", _messages),
    web.post(f"{SESSION}/events", _run),
    web.post("/sessions", _chat),
]
