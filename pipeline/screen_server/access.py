"""Access to sessions: signed tokens that name the sessions which may be read or written, and the sites that may ask.

A token is sent as a bearer, or as ``token`` in the address for clients that cannot set headers. There are no cookies,
so another site's page has no access by being open in the same browser.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import Struct

from reknit.pipeline.errors import InputError

Scope: TypeAlias = Literal["read", "write"]

# A shorter key could be guessed.
SHORTEST_KEY: Final = 16
# A longer token is not from this command and is not decoded.
_LONGEST_TOKEN: Final = 16 * 1024


class Claims(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The content of a token.

    Attributes:
        sessions: ids of the sessions.
        prefixes: beginnings of ids.
        scope: ``write`` includes ``read``.
        expires: seconds since 1970.
    """

    sessions: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    scope: Scope = "read"
    expires: int

    def covers(self, session: str) -> bool:
        """Return True if the token opens this session."""
        return session in self.sessions or any(session.startswith(prefix) for prefix in self.prefixes)


class Grant(Struct, frozen=True):
    """The access of one request.

    Attributes:
        can_write: whether it may send the user's words.
        until: the time at which the access ends, in seconds since 1970; None for no end.
        subject: identifies the token in limits; it is not the token.
    """

    can_write: bool
    until: float | None = None
    subject: str = ""


class Signer:
    """Makes and checks tokens.

    Args:
        key: the secret of the server.

    Raises:
        InputError: ``key_short``.
    """

    def __init__(self, key: str) -> None:
        if len(key) < SHORTEST_KEY:
            raise InputError("key_short", f"a key has at least {SHORTEST_KEY} characters")
        self._key = hashlib.sha256(b"reknit screens|" + key.encode()).digest()

    def token(self, claims: Claims) -> str:
        """Return a token with these claims.

        Raises:
            InputError: ``token_empty``, if it would open no session.
        """
        if not any((*claims.sessions, *claims.prefixes)):
            raise InputError("token_empty", "a token names at least one session, or the beginning of ids")
        payload = msgspec.json.encode(claims)
        return f"{_encoded(payload)}.{_encoded(self._mark(payload))}"

    def claims(self, token: str, now: float) -> Claims | None:
        """Return the claims of a token; None if it is not valid, or not any more."""
        if len(token) > _LONGEST_TOKEN:
            return None
        first, _, second = token.partition(".")
        payload = _decoded(first)
        if payload is None or not hmac.compare_digest(_decoded(second) or b"", self._mark(payload)):
            return None
        try:
            found = msgspec.json.decode(payload, type=Claims)
        except msgspec.DecodeError:
            return None
        return found if found.expires > now else None

    def _mark(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, "sha256")


def subject_of(token: str) -> str:
    """Return a name of a token that does not give the token away."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes | None:
    try:
        found = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    # Another text of the same bytes would be another subject, with limits of its own.
    return found if _encoded(found) == text else None
