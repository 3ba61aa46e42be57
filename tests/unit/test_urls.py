"""URLs are shown without credentials, and urllib requests follow no redirect."""

import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from msgspec import Raw

from reknit.pipeline.kafka import RedirectError, opener
from reknit.pipeline.urls import host_of, mask_urls, masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://key:secret@bucket/folder", "s3://(hidden)@bucket/folder"),
        ("https://secret@host/x", "https://(hidden)@host/x"),
        ("https://user:pa/ss@host:1/x", "https://(hidden)@host:1/x"),
        ("https://user:pa#ss@host/x", "https://(hidden)@host/x"),
        ("https://user:pa?ss@host", "https://(hidden)@host"),
        ("https://us@er:secret@host/", "https://(hidden)@host/"),
        ("https://host/x?key=secret&alt=sse", "https://host/x?key=(hidden)&alt=(hidden)"),
        ("https://host/x?secret", "https://host/x?(hidden)"),
        ("https://host/x#secret", "https://host/x#(hidden)"),
        ("https://host/?a=1#", "https://host/?a=(hidden)#"),
        ("file:///a,https://user:secret@host/b", "file:///a,https://(hidden)@host/b"),
        ("see https://user:secret@host and s3://a:secret@b", "see https://(hidden)@host and s3://(hidden)@b"),
        ("user:secret@host:9092,other:9092", "(hidden)@host:9092,other:9092"),
        ("https://host:443/folder@2", "https://host:443/folder@2"),
        ("https://[::1]:80/a@b", "https://[::1]:80/a@b"),
        ("localhost:9092,[::1]:9092", "localhost:9092,[::1]:9092"),
        ("me@example.org", "me@example.org"),
        ("file:///srv/objects", "file:///srv/objects"),
        ("", ""),
    ],
)
def test_only_credentials_are_masked(text, shown):
    assert mask_urls(text) == shown


def test_values_are_masked_at_any_depth():
    given = {
        "tools": (Raw(b'{"type":"mcp","server_url":"https:\\/\\/u:p@h\\/x","authorization":"secret"}'),),
        "params": {"mcp_servers": Raw(b'[{"url":"https://h/?t=s","authorization_token":"secret"}]'), "max_tokens": 5},
        "headers": {"x-api-key": "secret"},
        "token": 3,
        "none": None,
    }
    assert masked(given) == {
        "tools": [{"type": "mcp", "server_url": "https://(hidden)@h/x", "authorization": "(hidden)"}],
        "params": {
            "mcp_servers": [{"url": "https://h/?t=(hidden)", "authorization_token": "(hidden)"}],
            "max_tokens": 5,
        },
        "headers": "(hidden)",
        "token": 3,
        "none": None,
    }


@pytest.mark.parametrize(
    ("location", "host"),
    [
        ("https://user:secret@other.example:8443/x?key=secret", "other.example:8443"),
        ("/elsewhere", "here.example"),
        ("//other.example/x", "other.example"),
        ("https://[::1]:80/", "[::1]:80"),
        ("https://[broken/", "an unreadable address"),
        ("https://a\nb/", "an unreadable address"),
        ("javascript:alert(1)", "an unreadable address"),
        ("?key=secret", "here.example"),
        ("", "here.example"),
        ("mailto:me@example.org", "an unreadable address"),
    ],
)
def test_only_the_host_of_a_redirect_is_named(location, host):
    assert host_of(location, "https://me:secret@here.example/v1") == host


@contextmanager
def server(status, headers):
    """Yield the URL of a server that answers every request alike, and the list of its requests."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            asked.append((self.command, self.path, dict(self.headers)))
            self.send_response(status)
            for name, value in (*headers, ("content-length", "0")):
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_POST = answer  # noqa: N815  the name in http.server

        def log_message(self, *_given):
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        Thread(target=made.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{made.server_port}", asked
        finally:
            made.shutdown()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("body", [None, b"secret"], ids=["GET", "POST"])
def test_urllib_follows_no_redirect(status, body):
    with server(200, []) as (target, followed), server(status, [("location", f"{target}/x?secret")]) as (url, asked):
        request = urllib.request.Request(url, body, {"authorization": "secret"})  # noqa: S310  the test's own server
        with pytest.raises(RedirectError) as caught:
            opener(urllib.request.ProxyHandler({})).open(request, timeout=60)
    assert str(caught.value) == f"redirect to {target.removeprefix('http://')}, which is not followed"
    assert (len(asked), followed) == (1, [])
