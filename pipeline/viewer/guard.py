"""Access control: each request is checked here before a page handles it, and each answer gets security headers.

A viewer shows texts of agents and their tools, so other pages in the same browser must have no access: a name that was
rebound to this address is refused by its Host header, a form of another page by its Origin and by the token that only
the viewer's own pages hold. Headers of proxies count only for proxies that were named.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final, TypeAlias

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct
from multidict import MultiDictProxy

from reknit.pipeline.errors import InputError
from reknit.pipeline.urls import LOOPBACK
from reknit.pipeline.web import refuse_other_sites

Network: TypeAlias = IPv4Network | IPv6Network

# Asked for by machines that only want to know whether it runs; says nothing else.
HEALTH = "/healthz"
LOGIN = "/login"
# Asked for by every open page, every other second; shows nothing of a session.
PROGRESS = "/progress"
# Paths that need no login.
_OPEN = (LOGIN, "/static/")
# The field of a form, and the header of a script, that show that our own page sent it.
FIELD, HEADER = "token", "X-Reknit-Token"
LOGGED_IN_SECONDS = 12 * 3600
# A shorter login token could be guessed.
SHORTEST_LOGIN = 16
# A browser has this long to send the body of a request.
BODY_SECONDS: Final = 30.0
# Longest `next` of a login. The login page has it in its own address, encoded once more.
_LONGEST_NEXT: Final = 2000
# The characters of an address (RFC 3986), and no second slash at its start, after which another host would follow.
_LOCAL: Final = re.compile(r"/(?!/)[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]*")
_READING = frozenset({"GET", "HEAD"})

BINDING = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # With `no-referrer` a browser sends `Origin: null` from our own forms too; nothing leaves for another site here.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Viewed(Struct, frozen=True):
    """A line of the audit log: the user, the request and its outcome.

    ``user`` is the one that a named proxy authenticated.
    """

    time: str
    peer: str
    user: str
    method: str
    path: str
    status: int


class Peer(Struct, frozen=True):
    """The origin and the destination of a request as the browser states them."""

    address: str
    scheme: str
    host: str
    user: str


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def networks(names: Sequence[str]) -> tuple[Network, ...]:
    """Addresses and networks of proxies.

    Raises:
        InputError: ``proxy_unknown``, for what is neither.
    """
    try:
        return tuple(ip_network(name) for name in names)
    except ValueError as error:
        raise InputError("proxy_unknown", f"{error}: name the proxy by its address, or a network") from error


class HostNames:
    """The names of a server, and the proxies in front of it.

    Args:
        host: the listening address.
        names: the accepted host names in addition to the loopback's.
        proxies: the proxies whose X-Forwarded headers count.

    Raises:
        InputError: ``proxy_unknown``.
    """

    def __init__(self, host: str = "127.0.0.1", names: Sequence[str] = (), proxies: Sequence[str] = ()) -> None:
        self.names = LOOPBACK | {host.lower(), *(name.lower() for name in names)}
        self.proxies = networks(proxies)

    def peer(self, request: web.Request) -> Peer:
        """Return the client's address, from the headers of named proxies."""
        address = request.remote or ""
        if not self.is_proxy(address):
            return Peer(address, request.scheme, request.host, "")

        def forwarded(name: str, otherwise: str) -> str:
            # Bytes that are no UTF-8, which aiohttp keeps as surrogates, can be written to no log.
            return request.headers.get(f"X-Forwarded-{name}", otherwise).encode("utf-8", "replace").decode()

        # Each proxy appends its client's address, so the last address that is not a named proxy is the client.
        chain = [part.strip() for part in forwarded("For", "").split(",") if part.strip()]
        strangers = [part for part in chain if not self.is_proxy(part)]
        return Peer(
            strangers[-1] if strangers else address,
            forwarded("Proto", request.scheme),
            forwarded("Host", request.host),
            forwarded("User", ""),
        )

    def is_proxy(self, address: str) -> bool:
        """Return True for the address of a named proxy."""
        try:
            return any(ip_address(address) in network for network in self.proxies)
        except ValueError:
            return False


class Guard(HostNames):
    """The checks of one viewer.

    Args:
        host: the listening address.
        names: the accepted host names in addition to the loopback's.
        login: the token of users; without one there is no login.
        proxies: the proxies whose X-Forwarded headers count.
        audit: called with each request; None: no audit log.

    Raises:
        InputError: ``login_missing``, if other hosts could connect; ``login_short``.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        names: Sequence[str] = (),
        login: str = "",
        proxies: Sequence[str] = (),
        audit: Callable[[Viewed], object] | None = None,
    ) -> None:
        if not login and (proxies or not is_loopback(host)):
            message = "beyond this machine's loopback a viewer wants a login: give --token-file"
            raise InputError("login_missing", message)
        if login and len(login) < SHORTEST_LOGIN:
            raise InputError("login_short", f"a login token has at least {SHORTEST_LOGIN} characters")
        super().__init__(host, names, proxies)
        self.login = login
        self._audit = audit
        # Of a login token itself, so that whoever is logged in stays so when the viewer starts again.
        self._secret = hashlib.sha256(login.encode()).digest() if login else secrets.token_bytes()
        # Cookies do not distinguish ports, and another viewer may run on this host.
        self.cookie = f"reknit_viewer_{self._signed('cookie', '')[:8]}"

    async def __call__(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let a request through, or answer it; then write down who asked."""
        if request.path == HEALTH:
            return await handler(request)
        peer = self.peer(request)
        status = 500
        try:
            remedy = "--allow-host adds one."
            refuse_other_sites(request, host=peer.host, scheme=peer.scheme, names=self.names, remedy=remedy)
            first = self._log_in_by_address(request, peer) or self._ask_to_log_in(request)
            if first is None:
                self._refuse_without_token(request, await self._token_of(request))
            answer = first or await handler(request)
            status = answer.status
        except web.HTTPException as refused:
            status = refused.status
            raise
        finally:
            if self._audit is not None and not request.path.startswith(("/static/", PROGRESS)):
                self._audit(self._viewed(request, peer, status))
        return answer

    def form_token(self, request: web.Request) -> str:
        """Return the token of a page's forms: bound to the login, so that another user's is invalid."""
        return self._signed("form", request.cookies.get(self.cookie, ""))

    def logged_in(self, request: web.Request) -> bool:
        until, _, mark = request.cookies.get(self.cookie, "").rpartition(".")
        if not self.login or not hmac.compare_digest(_as_bytes(mark), self._signed("login", until).encode()):
            return not self.login
        return int(until.partition(".")[0]) > time.time()

    def let_in(self, answer: web.Response, peer: Peer) -> web.Response:
        """Set the cookie of a browser that showed the login token."""
        until = f"{int(time.time()) + LOGGED_IN_SECONDS}.{secrets.token_urlsafe(12)}"
        answer.set_cookie(
            self.cookie,
            f"{until}.{self._signed('login', until)}",
            max_age=LOGGED_IN_SECONDS,
            httponly=True,
            samesite="Strict",
            secure=peer.scheme == "https",
        )
        return answer

    def is_login(self, given: str) -> bool:
        return bool(self.login) and hmac.compare_digest(_as_bytes(given), self.login.encode())

    def _log_in_by_address(self, request: web.Request, peer: Peer) -> web.Response | None:
        """Remove a login token from the address immediately: addresses are stored in histories and shared."""
        given = request.query.get(FIELD)
        if not self.login or given is None or request.method != "GET" or request.path == LOGIN:
            return None
        if not self.is_login(given):
            return _seen_elsewhere(LOGIN)
        return self.let_in(_seen_elsewhere(local(str(request.rel_url.without_query_params(FIELD)))), peer)

    def _ask_to_log_in(self, request: web.Request) -> web.Response | None:
        if self.logged_in(request) or request.path.startswith(_OPEN):
            return None
        if request.method not in _READING or "HX-Request" in request.headers:
            return web.Response(status=401, text="Log in first.\n", headers={"HX-Redirect": LOGIN})
        return _seen_elsewhere(str(request.rel_url.with_path(LOGIN).with_query(next=local(str(request.rel_url)))))

    async def _token_of(self, request: web.Request) -> str:
        if request.method in _READING:
            return ""
        if HEADER in request.headers:
            return request.headers[HEADER]
        form = await form_of(request)
        return str(form.get(FIELD, "")) if request.path != LOGIN else self.form_token(request)

    def _refuse_without_token(self, request: web.Request, given: str) -> None:
        if request.method in _READING:
            return
        if not hmac.compare_digest(_as_bytes(given), self.form_token(request).encode()):
            raise web.HTTPForbidden(text="The page that sent this is out of date: reload it, and try again.\n")

    def _signed(self, what: str, value: str) -> str:
        return hmac.new(self._secret, _as_bytes(f"{what}|{value}"), hashlib.sha256).hexdigest()

    def _viewed(self, request: web.Request, peer: Peer, status: int) -> Viewed:
        path = str(request.rel_url.without_query_params(FIELD))
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        return Viewed(now, peer.address, peer.user, request.method, path, status)


def local(path: str) -> str:
    """Return ``path`` if it is an encoded path of this viewer, else the overview's.

    Browsers drop tabs and line ends from addresses, and read a backslash as a slash. So a path with any other character
    is refused, not repaired.
    """
    return path if len(path) <= _LONGEST_NEXT and _LOCAL.fullmatch(path) else "/"


async def form_of(request: web.Request) -> MultiDictProxy[Any]:
    """Return the form in the body of a request.

    Raises:
        InputError: ``bad_form``.
        web.HTTPException: it is too large, or took too long to arrive.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            form = await request.post()
        for value in form.values():
            if isinstance(value, str):
                value.encode()  # a character set that the request names may give surrogates
    except TimeoutError as error:
        raise web.HTTPRequestTimeout from error
    # aiohttp has no error of its own for these: an unknown character set, a part without headers, cut data.
    except (ValueError, LookupError, AssertionError, web.RequestPayloadError) as error:
        raise InputError("bad_form", "the body of the request is no form") from error
    return form


def _as_bytes(value: str) -> bytes:
    """Encode a header's text, in which aiohttp represents bytes that are not UTF-8 by surrogates."""
    return value.encode("utf-8", "surrogatepass")


def _seen_elsewhere(path: str) -> web.Response:
    return web.Response(status=303, headers={"Location": path, "Cache-Control": "no-store"})
