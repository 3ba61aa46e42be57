"""The bodies of requests in the forms that both clients send, and the user's words in them.

The clients send the whole conversation. Only its last message may be new; the rest is never taken for history.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec import Raw, Struct

from reknit.pipeline.errors import InputError
from reknit.pipeline.viewer.guard import BODY_SECONDS

# The longest id of a message; it becomes the id of a turn.
LONGEST_ID: Final = 200
_DATA_URL: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]*)", re.ASCII)


class Message(Struct):
    """A message that a client shows."""

    id: str = ""
    role: str = ""
    content: Any = None
    parts: Any = None


class Posted(Struct, rename="camel"):
    """The body of AG-UI (``threadId``) or of the AI SDK (``id``)."""

    thread_id: str = ""
    id: str = ""
    trigger: str = ""
    messages: list[Message] = []
    forwarded_props: Raw = Raw(b"null")

    @property
    def is_resumed(self) -> bool:
        """True if the client only shows the session: ``forwardedProps.reknit.resume``."""
        try:
            found = msgspec.json.decode(self.forwarded_props)
        except (msgspec.DecodeError, RecursionError):
            return False
        own = found.get("reknit") if isinstance(found, dict) else None
        return isinstance(own, dict) and own.get("resume") is True

    def new_message(self) -> Message | None:
        """Return the last message if it is the user's."""
        last = self.messages[-1] if self.messages else None
        return last if last is not None and last.role == "user" and not self.is_resumed else None


async def posted_in(request: web.Request) -> Posted:
    """Return the body of a request.

    Raises:
        InputError: ``bad_body``.
        web.HTTPException: it is too large, or took too long to arrive.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
        return msgspec.json.decode(body, type=Posted)
    except TimeoutError as error:
        raise web.HTTPRequestTimeout from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, web.RequestPayloadError) as error:
        raise InputError("bad_body", "the body is not one that an AG-UI or AI SDK client sends") from error


def turn_in(message: Message) -> dict[str, Any]:
    """Return a user's message as the turn of a session.

    Raises:
        InputError: ``bad_message``, for an id or a content that cannot become a turn.
    """
    if not message.id or len(message.id) > LONGEST_ID:
        raise InputError("bad_message", f"the id of a message has 1 to {LONGEST_ID} characters")
    content = message.content if message.parts is None else message.parts
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise InputError("bad_message", "the message has no content")
    return {"role": "user", "content": [_block(part) for part in content]}


def _block(part: object) -> dict[str, Any]:
    if not isinstance(part, dict):
        raise InputError("bad_message", "a part of the message is not an object")
    kind, text, source = part.get("type"), part.get("text"), part.get("source")
    if kind == "text" and isinstance(text, str):
        return {"type": "text", "text": text}
    if kind == "image" and isinstance(source, dict):
        data = {"data": source.get("value"), "media_type": source.get("mimeType")}
        if source.get("type") == "data" and all(isinstance(value, str) for value in data.values()):
            return {"type": "image", "source": {"type": "base64", **data}}
    url = part.get("url")
    if kind == "file" and isinstance(url, str) and (found := _DATA_URL.fullmatch(url)):
        return {"type": "image", "source": {"type": "base64", "media_type": found[1], "data": found[2]}}
    raise InputError("bad_message", "a message may have texts and images with their data")
