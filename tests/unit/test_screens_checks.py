"""The operator's own check of ``reknit screens``: its decisions, its arguments, its time limit and its failures."""

import asyncio
import contextlib
import gc
import logging
import sys
import threading
import time
from contextlib import asynccontextmanager

import pytest
from screens_lab import screens_of

from reknit.pipeline.errors import InputError
from reknit.pipeline.screen_server import checks
from reknit.pipeline.screen_server.access import Claims, Signer
from reknit.pipeline.screen_server.checks import Check, load_check
from reknit.pipeline.screen_server.gate import Gate
from reknit.pipeline.viewer.guard import HostNames
from reknit.topics.items import ItemStarted

SIGNER = Signer("a key that is long enough")
FORMS = ["messages", "events?as=items", "events?as=ag-ui", "stream"]


def always(decision):
    return lambda _headers, _session: decision


def as_async(function):
    async def check(headers, session):
        await asyncio.sleep(0)
        return function(headers, session)

    return check


class Asynchronous:
    """A check that is an object."""

    def __init__(self, function):
        self._function = function

    async def __call__(self, headers, session):
        await asyncio.sleep(0)
        return self._function(headers, session)


@asynccontextmanager
async def checked(path, function, *, seconds=5.0, signer=None, hosts=None, **options):
    check = Check(function, seconds)
    gate = Gate(hosts or HostNames(), signer, check=check, allow_writing=True)
    async with screens_of(path, gate=gate, **options) as (lab, http):
        for session in ("mine", "theirs"):
            lab.publish(ItemStarted(item_id="a", item_type="text"), session=session)

        async def status(session="mine", form="events", **given):
            async with http.get(f"{lab.url}/sessions/{session}/{form}", **given) as answer:
                return answer.status

        yield lab, http, status, check


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [lambda each: each, as_async, Asynchronous])
@pytest.mark.parametrize("form", FORMS)
async def test_a_check_opens_sessions(tmp_path, kind, form):
    def check(_headers, session):
        return "read" if session == "mine" else "deny"

    async with checked(tmp_path, kind(check)) as (_, _, status, found):
        assert [await status(session, form) for session in ("mine", "theirs", "unknown")] == [200, 404, 404]
        assert found.failures == 0


@pytest.mark.asyncio
@pytest.mark.parametrize(("decision", "wanted"), [("read", 409), ("write", 200), ("deny", 404)])
@pytest.mark.parametrize("kind", [lambda each: each, as_async])
async def test_only_a_check_that_allows_writing_lets_words_become_turns(tmp_path, kind, decision, wanted):
    async with checked(tmp_path, kind(always(decision)), takes_input=True, answer_seconds=0) as (lab, http, _, _):
        message = {"id": "m", "role": "user", "content": "Hi"}
        bodies = {
            "/sessions/mine/events": {"threadId": "mine", "messages": [message]},
            "/sessions": {"id": "mine", "messages": [message | {"id": "n"}]},
        }
        for path, body in bodies.items():
            async with http.post(lab.url + path, json=body) as answer:
                assert answer.status == wanted
                await answer.read()
        assert [key for _, key, _ in lab.turns.all] == (["m", "n"] if wanted == 200 else [])


@pytest.mark.asyncio
async def test_a_check_gets_the_headers_and_the_session(tmp_path):
    seen = []

    def check(headers, session):
        seen.append((headers.get("x-user"), headers.get("X-Forwarded-User"), session))
        return "read"

    headers = {"X-User": "ann", "x-forwarded-user": "forged"}
    async with checked(tmp_path, check) as (_, _, status, _):
        await status(headers=headers)
    # Of a named proxy these headers count.
    async with checked(tmp_path / "proxy", check, hosts=HostNames(proxies=["127.0.0.1"])) as (_, _, status, _):
        await status(headers=headers)
    assert seen == [("ann", None, "mine"), ("ann", "forged", "mine")]


@pytest.mark.asyncio
@pytest.mark.parametrize("with_token", [("read", "mine"), ("write", "mine"), ("write", "theirs"), None])
@pytest.mark.parametrize("decision", ["read", "write", "deny"])
async def test_a_token_and_a_check_must_both_allow(tmp_path, with_token, decision):
    headers = {}
    if with_token is not None:
        claims = Claims(sessions=(with_token[1],), scope=with_token[0], expires=int(time.time()) + 600)
        headers = {"Authorization": f"Bearer {SIGNER.token(claims)}"}
    options = {"signer": SIGNER, "takes_input": True, "answer_seconds": 0}
    async with checked(tmp_path, always(decision), **options) as (lab, http, status, _):
        can_read = with_token is not None and with_token[1] == "mine" and decision != "deny"
        assert await status(headers=headers) == (200 if can_read else 401 if with_token is None else 404)
        body = {"threadId": "mine", "messages": [{"id": "m", "role": "user", "content": "Hi"}]}
        async with http.post(f"{lab.url}/sessions/mine/events", json=body, headers=headers) as answer:
            await answer.read()
        can_write = can_read and with_token[0] == decision == "write"
        assert len(lab.turns.all) == can_write


def raises(_headers, _session):
    raise KeyError("SECRET")


def finds_none(_headers, _session):
    return next(iter(()))


def ends_the_thread(_headers, _session):
    sys.exit("SECRET")


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [lambda each: each, as_async])
@pytest.mark.parametrize(
    "function", [raises, finds_none, ends_the_thread, *map(always, [None, True, "", "READ", "admin", []])]
)
async def test_a_check_that_fails_denies(tmp_path, caplog, function, kind):
    caplog.set_level(logging.DEBUG)
    async with checked(tmp_path, kind(function)) as (_, _, status, check):
        assert [await status(), await status()] == [404, 404]
        assert check.failures == 2
    warnings = [record.getMessage() for record in caplog.records if record.name == "reknit.screens"]
    assert len(warnings) == 2
    assert "(failure 2)" in warnings[1]
    assert "SECRET" not in caplog.text


@pytest.mark.asyncio
async def test_a_check_has_a_time_limit_and_delays_no_other_request(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "MOST_THREADS", 1)
    go_on, is_entered = threading.Event(), threading.Event()

    def hangs(_headers, session):
        if session == "theirs":
            is_entered.set()
            go_on.wait(60)
        return "read"

    async def never(_headers, session):
        if session == "theirs":
            await asyncio.Event().wait()
        return "read"

    async with checked(tmp_path, never, seconds=0.05) as (_, _, status, check):
        assert await status("theirs") == 404
        assert (await status(), check.failures) == (200, 1)
    try:
        async with checked(tmp_path / "thread", hangs, seconds=0.2) as (_, _, status, check):
            assert await status("theirs") == 404
            assert is_entered.is_set()
            # It still has the only thread: no one gets in until it ends.
            assert (await status(), check.failures) == (404, 2)
            go_on.set()
            while await status() != 200:
                pass
    finally:
        go_on.set()


@pytest.mark.asyncio
async def test_a_check_that_catches_its_cancellation_denies_in_time(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    ends = asyncio.Event()

    async def continues(_headers, _session):
        while not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ends.wait()
        raise ValueError("SECRET")

    async with checked(tmp_path, continues, seconds=0.05) as (_, _, status, check):
        assert (await status(), check.failures) == (404, 1)
        ends.set()
        await asyncio.sleep(0.01)
    gc.collect()
    assert "SECRET" not in caplog.text


@pytest.mark.asyncio
async def test_a_check_whose_task_is_cancelled_denies(tmp_path):
    async def check(_headers, _session):
        raise asyncio.CancelledError

    async with checked(tmp_path, check) as (_, _, status, found):
        assert (await status(), found.failures) == (404, 1)


@pytest.mark.asyncio
async def test_a_slow_check_in_a_thread_does_not_stop_the_server(tmp_path):
    go_on = threading.Event()

    def slow(_headers, session):
        if session == "theirs":
            go_on.wait(60)
        return "read"

    async with checked(tmp_path, slow, seconds=60) as (_, _, status, _):
        waiting = asyncio.create_task(status("theirs"))
        assert [await status() for _ in range(3)] == [200] * 3
        assert not waiting.done()
        go_on.set()
        assert await waiting == 200


@pytest.mark.parametrize(
    "name", ["", "json", "json:", ":loads", "no_such_module:f", "json:no_such", "json:__name__", "json:decoder.no"]
)
def test_a_check_that_cannot_be_loaded_is_refused(name):
    with pytest.raises(InputError) as refused:
        load_check(name)
    assert refused.value.code == "check_unknown"


def test_a_module_that_fails_is_refused_with_its_error(tmp_path, monkeypatch):
    (tmp_path / "own_check_that_fails.py").write_text("raise RuntimeError('no database')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError, match="no database"):
        load_check("own_check_that_fails:check")


def test_a_check_is_loaded_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "own_check.py").write_text(
        "class A:\n    @staticmethod\n    def check(headers, session): return 'read'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_check("own_check:A.check")({}, "s") == "read"
