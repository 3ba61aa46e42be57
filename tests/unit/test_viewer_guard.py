"""The viewer's guard: access denied to other pages, other machines and forged headers, attack by attack."""

import asyncio
import socket
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from browser import browsing, needs_browser
from viewer_lab import viewer_of

from reknit.pipeline.errors import InputError
from reknit.pipeline.viewer.guard import FIELD, HEADER, Guard, local
from reknit.pipeline.viewer.pages import page
from reknit.pipeline.viewer.server import application, serving

LOGIN = "a-token-that-nobody-guesses"
LOCAL = "127.0.0.1"


async def shown(request):
    return page(request, "error.html", title="Secrets", message="what agents said", code="", number=200)


async def changed(request):
    request.app[DONE].append(request.match_info["what"])
    return web.Response(text="done")


async def failing(_request):
    raise ValueError("content of a session")


async def refused(_request):
    raise InputError("search_wrong", "no such <search>")


DONE: web.AppKey[list] = web.AppKey("done", list)
ROUTES = [
    web.get("/", shown),
    web.get("/fails", failing),
    web.get("/refused", refused),
    web.post("/change/{what}", changed),
]


@asynccontextmanager
async def viewer_with(**options):
    """Yield a function that sends requests to a viewer, and the list of changes made there."""
    viewer = viewer_of(guard=Guard(LOCAL, **options))
    app = application(viewer, ROUTES, pages=())
    app[DONE] = []
    async with serving(app, LOCAL, 0) as url, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:

        async def ask(method, path, **given):
            async with http.request(method, url.rstrip("/") + path, allow_redirects=False, **given) as answer:
                return answer, await answer.text()

        ask.origin, ask.token = url.rstrip("/"), viewer.guard
        yield ask, app[DONE]


def token_in(text):
    return text.partition(f'name="{HEADER}" content="')[2].partition('"')[0]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": LOCAL}, 200),
        ({"Host": "localhost:8000"}, 200),  # a tunnel has another port
        ({"Host": "[::1]:80"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "viewer.internal:443"}, 200),  # an allowed name
        # Names that were rebound to this address.
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost@evil.example"}, 421),
        ({"Host": "[::1"}, 421),
        ({"Host": ""}, 421),
        # A page of another site may link here, and embeds nothing.
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "script"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Origin": "http://evil.example"}, 403),
    ],
)
async def test_requests_by_another_name_or_from_another_site_are_rejected(headers, status):
    async with viewer_with(names=["Viewer.internal"]) as (ask, _):
        answer, text = await ask("GET", "/", headers=headers)
    assert (answer.status, "what agents said" in text) == (status, status == 200)


async def test_a_name_that_is_not_allowed_is_rejected():
    async with viewer_with() as (ask, _):
        answer, _ = await ask("GET", "/", headers={"Host": "viewer.internal"})
    assert answer.status == 421


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "{own}"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:1"}, 403),  # another program of this machine
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Dest": "document"}, 403),
    ],
)
async def test_a_page_of_another_site_changes_nothing(headers, status):
    async with viewer_with() as (ask, done):
        _, text = await ask("GET", "/")
        given = {name: value.format(own=ask.origin) for name, value in headers.items()} | {HEADER: token_in(text)}
        answer, _ = await ask("POST", "/change/it", headers=given)
        assert (answer.status, done) == (status, ["it"] if status == 200 else [])


@pytest.mark.parametrize("where", ["header", "field"])
@pytest.mark.parametrize(("given", "status"), [("right", 200), ("wrong", 403), ("", 403), (None, 403), ("ü", 403)])
async def test_a_change_requires_the_token_of_the_viewers_page(where, given, status):
    async with viewer_with() as (ask, done):
        _, text = await ask("GET", "/")
        token = token_in(text) if given == "right" else given
        if given is None:
            sent = {}
        elif where == "header":
            sent = {"headers": {HEADER: token}}
        else:
            sent = {"data": {FIELD: token}}
        answer, _ = await ask("POST", "/change/it", **sent)
        assert (answer.status, done) == (status, ["it"] if status == 200 else [])


@pytest.mark.parametrize(
    ("proxies", "forwarded", "status"),
    [
        ([], {"X-Forwarded-Host": "localhost", "Host": "evil.example"}, 421),
        ([], {"X-Forwarded-Host": "evil.example"}, 200),
        (["10.0.0.0/8"], {"X-Forwarded-Host": "evil.example"}, 200),
        ([LOCAL], {"X-Forwarded-Host": "viewer.internal"}, 200),
        ([LOCAL], {"X-Forwarded-Host": "evil.example"}, 421),
        (["127.0.0.0/8"], {"X-Forwarded-Proto": "https", "Origin": "https://{host}"}, 200),
        ([], {"X-Forwarded-Proto": "https", "Origin": "https://{host}"}, 403),
    ],
)
async def test_proxy_headers_count_only_if_the_proxy_is_named(proxies, forwarded, status):
    async with viewer_with(proxies=proxies, names=["viewer.internal"], login=LOGIN) as (ask, _):
        host = ask.origin.removeprefix("http://")
        await ask("GET", f"/?token={LOGIN}")
        headers = {name: value.format(host=host) for name, value in forwarded.items()}
        answer, _ = await ask("GET", "/", headers=headers)
    assert answer.status == status


@pytest.mark.parametrize(
    ("proxies", "forwarded", "peer"),
    [
        ([], "6.6.6.6", LOCAL),
        ([LOCAL], "6.6.6.6", "6.6.6.6"),
        ([LOCAL], "6.6.6.6, 7.7.7.7", "7.7.7.7"),  # the browser's own claim comes first
        ([LOCAL, "7.7.7.0/24"], "6.6.6.6, 7.7.7.7", "6.6.6.6"),
        ([LOCAL], "", LOCAL),
    ],
)
async def test_the_audit_log_has_user_page_and_status(proxies, forwarded, peer):
    lines = []
    async with viewer_with(proxies=proxies, login=LOGIN, audit=lines.append) as (ask, _):
        headers = {"X-Forwarded-For": forwarded, "X-Forwarded-User": "ada"}
        await ask("GET", f"/?q=a&token={LOGIN}", headers=headers)
        await ask("GET", "/?q=a", headers=headers)
        await ask("POST", "/change/it", headers=headers)
        await ask("GET", "/static/viewer.css", headers=headers)
        await ask("GET", "/healthz", headers=headers)
    user = "ada" if proxies else ""
    assert [(line.peer, line.user, line.method, line.path, line.status) for line in lines] == [
        (peer, user, "GET", "/?q=a", 303),
        (peer, user, "GET", "/?q=a", 200),
        (peer, user, "POST", "/change/it", 403),
    ]


async def test_a_login_token_is_removed_from_the_address_immediately():
    async with viewer_with(login=LOGIN) as (ask, _):
        before, _ = await ask("GET", "/?q=a")
        wrong, _ = await ask("GET", "/?token=something-else&q=a")
        first, _ = await ask("GET", f"/?token={LOGIN}&q=a")
        after, text = await ask("GET", "/?q=a")
    assert (before.status, before.headers["Location"]) == (303, "/login?next=/?q%3Da")
    assert (wrong.status, wrong.headers["Location"], wrong.cookies) == (303, "/login", {})
    assert (first.status, first.headers["Location"]) == (303, "/?q=a")
    [cookie] = first.cookies.values()
    assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["secure"]) == (True, "Strict", "/", "")
    assert LOGIN not in cookie.value
    assert (after.status, LOGIN in text) == (200, False)


async def test_with_tls_the_cookie_is_secure():
    async with viewer_with(login=LOGIN, proxies=[LOCAL]) as (ask, _):
        answer, _ = await ask("GET", f"/?token={LOGIN}", headers={"X-Forwarded-Proto": "https"})
    [cookie] = answer.cookies.values()
    assert cookie["secure"] is True


@pytest.mark.parametrize(("given", "status"), [(LOGIN, 303), ("something-else", 403), ("", 403)])
async def test_login_by_the_form(given, status):
    async with viewer_with(login=LOGIN) as (ask, _):
        answer, text = await ask("POST", "/login", data={"login": given, "next": "//evil.example/a"})
        after, _ = await ask("GET", "/")
    assert (answer.status, after.status) == (status, 200 if status == 303 else 303)
    assert answer.headers.get("Location") == ("/" if status == 303 else None)
    assert "That is not the token." in text or status == 303


@pytest.mark.parametrize("forged", ["", ".", "9999999999.a.{mark}", "9999999999.a.", "1.a.{mark}", "ü.ü.ü"])
async def test_a_cookie_cannot_be_forged(forged):
    async with viewer_with(login=LOGIN) as (ask, _):
        cookie = {ask.token.cookie: forged.format(mark="0" * 64)}
        answer, _ = await ask("GET", "/", headers={"Cookie": "; ".join(f"{k}={v}" for k, v in cookie.items())})
    assert answer.status == 303


async def test_a_login_expires(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.viewer.guard.LOGGED_IN_SECONDS", -1)
    async with viewer_with(login=LOGIN) as (ask, _):
        first, _ = await ask("GET", f"/?token={LOGIN}")
        [cookie] = first.cookies.values()
        answer, _ = await ask("GET", "/", headers={"Cookie": f"{cookie.key}={cookie.value}"})
    assert answer.status == 303


async def test_without_a_login_no_further_links_are_shown():
    async with viewer_with(login=LOGIN) as (ask, _):
        _, outside = await ask("GET", "/login")
        await ask("GET", f"/?token={LOGIN}")
        _, inside = await ask("GET", "/login")
    assert ["/logout" in text for text in (outside, inside)] == [False, True]
    assert ['href="/sessions"' in text for text in (outside, inside)] == [False, True]


async def test_a_logout_ends_the_login():
    async with viewer_with(login=LOGIN) as (ask, _):
        await ask("GET", f"/?token={LOGIN}")
        _, text = await ask("GET", "/")
        out, _ = await ask("POST", "/logout", data={FIELD: token_in(text)})
        after, _ = await ask("GET", "/")
    assert (out.status, after.status) == (303, 303)


async def test_a_part_of_a_page_is_not_answered_by_the_login_page():
    async with viewer_with(login=LOGIN) as (ask, done):
        part, _ = await ask("GET", "/", headers={"HX-Request": "true"})
        change, _ = await ask("POST", "/change/it")
        assert (part.status, change.status, part.headers["HX-Redirect"], done) == (401, 401, "/login", [])


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"host": "::"}, "login_missing"),
        ({"host": "192.168.1.2"}, "login_missing"),
        ({"host": "viewer.internal"}, "login_missing"),
        ({"proxies": ["10.0.0.1"]}, "login_missing"),
        ({"host": "::", "login": "short"}, "login_short"),
        ({"proxies": ["proxy"], "login": LOGIN}, "proxy_unknown"),
    ],
)
def test_a_viewer_reachable_from_other_machines_requires_a_login(options, code):
    with pytest.raises(InputError) as raised:
        Guard(**options)
    assert raised.value.code == code


# Browsers drop tabs and line ends from an address, and read a backslash as a slash.
ELSEWHERE = [
    "",
    "x",
    "//evil.example/x",
    "///evil.example",
    "\\\\evil.example",
    "/\\evil.example",
    "/\t/evil.example",
    "\t//evil.example",
    "/\n/evil.example",
    "/\r\n/evil.example",
    "/a\r\nSet-Cookie: a=b",
    "/\x00/evil.example",
    "/\u2028/evil.example",
    "https://evil.example/",
    "javascript:alert(1)",
    "/" + "a" * 8000,
]


@pytest.mark.parametrize("path", ELSEWHERE)
def test_a_foreign_path_is_replaced_by_the_overview(path):
    assert local(path) == "/"


@pytest.mark.parametrize("path", ["/", "/sessions?q=a%20b&code=x", "/sessions/a%2Fb/stream#e1", "/letters/0/1"])
def test_a_local_path_is_followed_unchanged(path):
    assert local(path) == path


@pytest.mark.parametrize("path", ELSEWHERE)
async def test_a_login_never_redirects_to_another_site(path, caplog):
    async with viewer_with(login=LOGIN) as (ask, _):
        form, _ = await ask("GET", "/login", params={"next": path})
        answer, _ = await ask("POST", "/login", data={"login": LOGIN, "next": path})
    assert (form.status, answer.status, answer.headers["Location"]) == (200, 303, "/")
    assert caplog.text == ""


@needs_browser
@pytest.mark.parametrize(
    "path", ["/%09/127.0.0.1:9/x", "/%5C127.0.0.1:9/x", "//127.0.0.1:9/x", "/%0D%0A/127.0.0.1:9/x"]
)
async def test_no_browser_leaves_the_viewer_by_a_login(path):
    async with viewer_with(login=LOGIN) as (ask, _), browsing() as browser, browser.tab() as page:
        assert await page.go(f"{ask.origin}/login?next={path}") == 200
        await page.type("#login", LOGIN)
        async with page.navigation():
            await page.press("Enter")
        assert await page.ask("location.pathname") == "/"
        assert await page.ask("location.origin") == ask.origin
        assert page.did().requests == []


MULTIPART = "multipart/form-data; boundary=b"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/x-www-form-urlencoded; charset=nonsense", b"token=a"),
        ("application/x-www-form-urlencoded; charset=utf-16", b"token=a"),
        ("application/x-www-form-urlencoded; charset=raw_unicode_escape", b"token=\\ud800"),
        ("application/x-www-form-urlencoded; charset=zlib", b"token=a"),
        (MULTIPART, b"no part"),
        (MULTIPART, b"--b\r\n\r\nsecret"),
        (MULTIPART, b'--b\r\nContent-Disposition: form-data; name="token"\r\n\r\nsecret'),
        ("multipart/form-data", b"secret"),
    ],
)
async def test_an_invalid_form_body_is_the_senders_fault(kind, body, caplog):
    async with viewer_with() as (ask, done):
        answer, _ = await ask("POST", "/change/it", data=body, headers={"Content-Type": kind})
    assert (answer.status in {400, 403}, done) == (True, [])
    assert "secret" not in caplog.text
    assert "a page failed" not in caplog.text


async def test_bytes_that_are_not_utf8_are_no_token(caplog):
    lines = []
    async with viewer_with(login=LOGIN, proxies=[LOCAL], audit=lines.append) as (ask, done):
        odd = {"Cookie": f"{ask.token.cookie}=9.\udcff.\udcff", HEADER: "\udcff", "X-Forwarded-User": "\udcff"}
        raw = "".join(f"{name}: {value}\r\n" for name, value in odd.items()).encode("utf-8", "surrogateescape")
        answer = await raw_answer(ask.origin, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + raw + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 303 ")
    assert (done, caplog.text, [line.user for line in lines]) == ([], "", ["?"])


async def raw_answer(origin, request):
    """Return the first line of the response to these bytes, or everything received before the connection closed."""
    _, _, port = origin.rpartition(":")
    reading, writing = await asyncio.open_connection(LOCAL, int(port))
    writing.write(request)
    try:
        return await reading.readuntil(b"\r\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    finally:
        writing.close()


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01secret\r\n\r\n",
        b"secret\r\n\r\n",
        b"GET secret HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.secret\r\n\r\n",
        b"GET / HTTP/1.1\r\nsecret\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nsecret : x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: secret\r\n\r\n",
        b"GET /" + b"secret" * 2000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"secret" * 2000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nsecret\r\n",
    ],
)
async def test_a_malformed_request_leaves_none_of_its_content_in_a_log(request_bytes, caplog):
    caplog.set_level("DEBUG")
    async with viewer_with() as (ask, _):
        answer = await raw_answer(ask.origin, request_bytes)
        # The server still answers other clients.
        healthy, _ = await ask("GET", "/healthz")
    assert (answer[:13], healthy.status) in {(b"HTTP/1.0 400 ", 200), (b"HTTP/1.1 400 ", 200), (b"HTTP/1.1 403 ", 200)}
    logged = [record for record in caplog.records if record.name != "asyncio"]
    assert [record.name for record in logged] == ["reknit.http"] * len(logged)
    assert "secret" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_half_open_requests_are_closed_and_others_are_answered_meanwhile(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.web.IDLE_SECONDS", 0.5)
    async with viewer_with() as (ask, _):
        _, _, port = ask.origin.rpartition(":")
        begun = [b"", b"GET / HTTP/1.1\r\nHo", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"P"]
        open_ones = [await asyncio.open_connection(LOCAL, int(port)) for _ in range(60)]
        for number, (_, writing) in enumerate(open_ones):
            writing.write(begun[number % len(begun)])
        healthy, _ = await ask("GET", "/")
        ends = await asyncio.gather(*(reading.read() for reading, _ in open_ones))
        for _, writing in open_ones:
            writing.close()
    assert (healthy.status, ends) == (200, [b""] * 60)


async def test_an_endless_body_times_out(monkeypatch):
    monkeypatch.setattr("reknit.pipeline.viewer.guard.BODY_SECONDS", 0.1)
    head = b"POST /change/it HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
    async with viewer_with() as (ask, done):
        answer = await raw_answer(ask.origin, head + b"Content-Type: application/x-www-form-urlencoded\r\n\r\ntok")
    assert (answer, done) == (b"HTTP/1.1 408 Request Timeout\r\n", [])


@pytest.mark.parametrize("path", ["/", "/nothing", "/static/viewer.css", "/static/../pages.py", "/healthz", "/fails"])
async def test_every_response_has_the_security_headers(path):
    async with viewer_with() as (ask, _):
        answer, _ = await ask("GET", path)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "same-origin"


async def test_errors_are_reported_without_content(caplog):
    async with viewer_with() as (ask, _):
        ours, text = await ask("GET", "/fails")
        theirs, words = await ask("GET", "/refused")
        nowhere, _ = await ask("GET", "/nowhere")
        wrong, _ = await ask("PUT", "/")
    assert (ours.status, theirs.status, nowhere.status, wrong.status) == (500, 400, 404, 403)
    assert "no such &lt;search&gt;" in words
    assert "content of a session" not in text + caplog.text
    assert "a page failed: ValueError at " in caplog.text


async def test_a_port_in_use_is_reported():
    with socket.create_server((LOCAL, 0)) as taken, pytest.raises(InputError) as raised:
        async with serving(web.Application(), LOCAL, taken.getsockname()[1]):
            pass
    assert raised.value.code == "port_taken"
