"""The conversation that a request belongs to, as a key from which no content can be read.

A wrong guess costs a refusal more, never content: the key only selects what is remembered of earlier requests, and a
request with nothing of it stays as it is. An agent, its sub-agents and its requests for titles share session
headers, so the first words of the user belong to the key. The system prompt does not: it has dates and directories.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import Raw
from multidict import MultiMapping

from reknit.pipeline.serve.aws import access_key_in
from reknit.pipeline.serve.headers import CREDENTIALS
from reknit.pipeline.stages.content import ROOTS

# Headers that Claude Code and Codex send with each request of a conversation.
_SESSION_HEADERS: Final = (
    "x-session-id",
    "x-claude-code-session-id",
    "x-claude-code-agent-id",
    "session-id",
    "thread-id",
)
# Claude Code writes the date and the state of its tools into the first message of the user, and changes them.
_REMINDER: Final = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.DOTALL)
_turns: Final = msgspec.json.Decoder(list[Raw] | str)
_object: Final = msgspec.json.Decoder(dict[str, Any])


class Conversation:
    """The conversation of one request.

    Its key and its tenant are made when they are needed. The arguments are those of ``conversation_key``.
    """

    def __init__(
        self, secret: bytes, headers: MultiMapping[str], members: Mapping[str, Raw], *, upstream: str, target: str
    ) -> None:
        self._make = partial(conversation_key, secret, headers, members, upstream=upstream, target=target)
        self._make_tenant = partial(tenant_of, secret, headers)
        self._key = self._tenant = b""

    def key(self) -> bytes:
        """Return the key."""
        self._key = self._key or self._make()
        return self._key

    def tenant(self) -> bytes:
        """Return the digest of the client's credentials."""
        self._tenant = self._tenant or self._make_tenant()
        return self._tenant


def conversation_key(
    secret: bytes, headers: MultiMapping[str], members: Mapping[str, Raw], *, upstream: str, target: str
) -> bytes:
    """Return the key of a conversation: an HMAC with a secret of the gateway.

    Args:
        secret: of the gateway, so that a stolen store gives no credential to compare with.
        headers: of the client, with its credential.
        members: of the body.
        upstream: the upstream's name.
        target: of the request.
    """
    sessions = [headers.get(name, "") for name in _SESSION_HEADERS]
    parts = [upstream, target, *credentials_in(headers), *sessions, *_first_words(members)]
    return hmac.digest(secret, msgspec.json.encode(parts), hashlib.sha256)


def tenant_of(secret: bytes, headers: MultiMapping[str]) -> bytes:
    """Return the digest of a client's credentials, which keeps tenants apart: an HMAC with a secret of the gateway.

    Args:
        secret: of the gateway.
        headers: of the client.
    """
    credentials = "\0".join(credentials_in(headers))
    return hmac.digest(secret, credentials.encode("utf-8", "surrogateescape"), hashlib.sha256)


def credentials_in(headers: MultiMapping[str]) -> list[str]:
    """Return the credentials of a client, the same for all its requests."""
    access_key = access_key_in(headers.get("authorization", ""))
    # A signature differs in each request.
    return [access_key] if access_key else [headers.get(name, "") for name in sorted(CREDENTIALS)]


def _first_words(members: Mapping[str, Raw]) -> list[str]:
    """Return the texts of the first message of the user."""
    for name in ROOTS:
        value = members.get(name)
        if value is None:
            continue
        try:
            turns = _turns.decode(value)
            if isinstance(turns, str):
                return [turns]
            for turn in turns:
                message = _object.decode(turn)
                if message.get("role", "user") == "user":
                    return _texts(message.get("content", message.get("parts")))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return []
    return []


def _texts(content: object) -> list[str]:
    blocks = content if isinstance(content, list) else [content]
    texts = (block.get("text") if isinstance(block, dict) else block for block in blocks)
    return [found for text in texts if isinstance(text, str) and (found := _REMINDER.sub("", text).strip())]
