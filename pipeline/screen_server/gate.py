"""The checks before a session is served: the name of the server, the site that asks, limits, and the token."""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web
from msgspec import Struct
from multidict import CIMultiDict, CIMultiDictProxy

from reknit.pipeline.screen_server.access import Claims, Grant, Signer, subject_of
from reknit.pipeline.screen_server.checks import Check
from reknit.pipeline.viewer.guard import HostNames
from reknit.pipeline.web import refuse_other_sites

_ALLOWED_HEADERS: Final = "authorization, content-type, last-event-id"
_PREFLIGHT_SECONDS: Final = 600
_SITE: Final = re.compile(r"https?://[^/\s@?#*]+", re.ASCII)
# The beginning of the headers in which a proxy names its client, in lower case.
_FORWARDED: Final = "x-forwarded-"
# Peers whose requests are counted.
_MOST_PEERS: Final = 10_000


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one server.

    Attributes:
        connections: open streams in all.
        of_session: open streams of one session.
        of_peer: open streams of one token, or of one address without a token.
        requests: requests of a peer at once.
        per_second: requests of a peer per second in the long term.
        stream_seconds: the longest age of a stream. The client then resumes, perhaps at another server.
    """

    connections: int = 10_000
    of_session: int = 1000
    of_peer: int = 200
    requests: int = 40
    per_second: float = 10.0
    stream_seconds: float = 3600.0


class Visitor(Struct, frozen=True):
    """The sender of a request.

    Attributes:
        subject: identifies the sender in limits.
        claims: of the token; None where no token is needed.
    """

    subject: str
    claims: Claims | None


class Gate:
    """Checks requests.

    Args:
        hosts: the names of the server, and the proxies whose headers count.
        signer: checks tokens; None for a server that is only for its own machine and needs no token.
        origins: the sites whose pages may ask, such as ``https://app.example.com``.
        limits: the limits.
        check: the operator's own check. Where there are tokens as well, both must allow.
        allow_writing: whether callers of a server without tokens and without a check may write.
        now: the time in seconds since 1970.
    """

    def __init__(
        self,
        hosts: HostNames,
        signer: Signer | None,
        origins: Collection[str] = (),
        limits: Limits | None = None,
        *,
        check: Check | None = None,
        allow_writing: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._hosts, self._signer, self._check = hosts, signer, check
        self._origins = frozenset(origins)
        self.limits = limits or Limits()
        self._allow_writing = allow_writing
        self._now = now
        self._allowances: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._of_peers: Counter[str] = Counter()
        self._of_sessions: Counter[str] = Counter()

    def admit(self, request: web.Request) -> None:
        """Refuse what another site's page sends, unless the site may ask.

        Raises:
            web.HTTPException: the request is refused.
        """
        peer = self._hosts.peer(request)
        names, origins = self._hosts.names, self._origins
        remedy = "--allow-host adds one."
        refuse_other_sites(request, host=peer.host, scheme=peer.scheme, names=names, remedy=remedy, origins=origins)

    def preflight(self, request: web.Request) -> web.Response:
        """Answer the question of a browser whether a page of another site may ask."""
        origin = request.headers.get("Origin")
        if origin not in self._origins:
            raise web.HTTPForbidden(text="Pages of this site may not ask.\n")
        headers = {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": _ALLOWED_HEADERS,
            "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
        }
        return web.Response(status=204, headers=headers)

    def shared_with(self, request: web.Request) -> dict[str, str]:
        """Return the headers by which a page of another site may read the answer."""
        origin = request.headers.get("Origin")
        shared = {"Access-Control-Allow-Origin": origin} if origin is not None and origin in self._origins else {}
        return {"Vary": "Origin", **shared}

    def identify(self, request: web.Request) -> Visitor:
        """Return the sender of a request.

        Raises:
            web.HTTPUnauthorized: there is no valid token.
            web.HTTPTooManyRequests: the peer asks too often.
        """
        address = self._hosts.peer(request).address
        self._count(address)
        if self._signer is None:
            return Visitor(address, None)
        token = _token_of(request)
        claims = self._signer.claims(token, self._now())
        if claims is None:
            raise web.HTTPUnauthorized(text="A valid token is needed.\n", headers={"WWW-Authenticate": "Bearer"})
        return Visitor(subject_of(token), claims)

    async def grant(self, request: web.Request, session: str, visitor: Visitor | None = None) -> Grant:
        """Return the access of a request to a session.

        Args:
            request: the request.
            session: the id of the session.
            visitor: its sender, if it was identified before.

        Raises:
            web.HTTPNotFound: the token is for other sessions, or the check denies, as if there were no such session.
            web.HTTPException: as ``identify``.
        """
        visitor = visitor or self.identify(request)
        claims = visitor.claims
        if claims is not None and not claims.covers(session):
            raise no_session()
        can_write = self._allow_writing if claims is None else claims.scope == "write"
        if self._check is not None:
            decision = await self._check.decide(self._headers_of(request), session)
            if decision == "deny":
                raise no_session()
            can_write = decision == "write" and (claims is None or can_write)
        return Grant(can_write, None if claims is None else float(claims.expires), visitor.subject)

    def _headers_of(self, request: web.Request) -> CIMultiDictProxy[str]:
        """Return the headers of a request. X-Forwarded headers are left out unless a named proxy sent them."""
        if self._hosts.is_proxy(request.remote or ""):
            return request.headers
        kept = [(name, value) for name, value in request.headers.items() if not name.lower().startswith(_FORWARDED)]
        return CIMultiDictProxy(CIMultiDict(kept))

    def _count(self, peer: str) -> None:
        limits, now = self.limits, self._now()
        left, at = self._allowances.pop(peer, (float(limits.requests), now))
        left = min(float(limits.requests), left + max(0.0, now - at) * limits.per_second)
        self._allowances[peer] = max(0.0, left - 1), now
        while len(self._allowances) > _MOST_PEERS:
            self._allowances.popitem(last=False)
        if left < 1:
            raise web.HTTPTooManyRequests(text="Too many requests.\n", headers={"Retry-After": "1"})

    @contextmanager
    def stream(self, session: str, grant: Grant) -> Iterator[None]:
        """Count a stream while the block runs.

        Raises:
            web.HTTPTooManyRequests: the peer or the session has as many as it may have.
            web.HTTPServiceUnavailable: the server has.
        """
        retry = {"Retry-After": "5"}
        if self._of_sessions.total() >= self.limits.connections:
            raise web.HTTPServiceUnavailable(text="This server has too many streams.\n", headers=retry)
        if self._of_peers[grant.subject] >= self.limits.of_peer:
            raise web.HTTPTooManyRequests(text="Too many streams of yours are open.\n", headers=retry)
        if self._of_sessions[session] >= self.limits.of_session:
            raise web.HTTPTooManyRequests(text="Too many streams of this session are open.\n", headers=retry)
        counts = ((self._of_peers, grant.subject), (self._of_sessions, session))
        for counter, name in counts:
            counter[name] += 1
        try:
            yield
        finally:
            for counter, name in counts:
                counter[name] -= 1
                if not counter[name]:
                    del counter[name]


def no_session() -> web.HTTPNotFound:
    """Return the answer for a session that is unknown, or to which there is no access."""
    return web.HTTPNotFound(text="There is no such session.\n")


def _token_of(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.query.get("token", "")


def is_site(text: str) -> bool:
    """Return True for a site as browsers name it in ``Origin``: a scheme and a host, without a path."""
    return _SITE.fullmatch(text) is not None
