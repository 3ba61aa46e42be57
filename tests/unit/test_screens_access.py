"""Access to sessions: tokens, other sites, limits, hostile content, and the user's words."""

import asyncio
import base64
import hashlib
import hmac
import json
import string
import time
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from screen_clients import AgUiClient, AiSdkClient
from screens_lab import Stream, screens_of

from reknit.pipeline.errors import InputError
from reknit.pipeline.screen_server.access import Claims, Signer
from reknit.pipeline.screen_server.formats import AiSdkWriter
from reknit.pipeline.screen_server.gate import Gate, Limits
from reknit.pipeline.viewer.guard import Guard, HostNames
from reknit.topics.items import AgentError, ItemCompleted, ItemDelta, ItemStarted, TurnStop

KEY = "a key that is long enough"
SIGNER = Signer(KEY)
SOON = int(time.time()) + 86_400  # after the end of all tests
PATHS = ["/sessions/{}/messages", "/sessions/{}/events?as=items", "/sessions/{}/events?as=ag-ui", "/sessions/{}/stream"]


def token(**claims):
    return SIGNER.token(Claims(**{"expires": SOON, **claims}))


def bearer(value):
    return {"Authorization": f"Bearer {value}"}


@asynccontextmanager
async def guarded(path, *, origins=(), limits=None, now=time.time, **options):
    gate = Gate(Guard(login=KEY), SIGNER, origins, limits, now=now)
    async with screens_of(path, gate=gate, **options) as (lab, http):
        for session in ("mine", "theirs"):
            lab.publish(ItemStarted(item_id="a", item_type="text"), session=session)
        yield lab, http


@pytest.mark.asyncio
@pytest.mark.parametrize("path", PATHS)
async def test_a_token_opens_its_session_and_no_other(tmp_path, path):
    async with guarded(tmp_path) as (lab, http):

        async def status(session, **given):
            async with http.get(lab.url + path.format(session), **given) as answer:
                return answer.status

        mine = token(sessions=("mine",))
        assert await status("mine", headers=bearer(mine)) == 200
        # The same answer as for a session that is unknown.
        assert await status("theirs", headers=bearer(mine)) == 404
        assert await status("min", headers=bearer(mine)) == 404
        assert await status("mine%2F..%2Ftheirs", headers=bearer(mine)) == 404
        assert await status("mine", headers=bearer(token(prefixes=("mi",)))) == 200
        assert await status("theirs", headers=bearer(token(prefixes=("mi",)))) == 404
        assert await status("mine") == 401
        assert await status("mine", headers=bearer(KEY)) == 401
        assert await status("mine", headers=bearer(token(sessions=("mine",), expires=1))) == 401


@pytest.mark.asyncio
async def test_a_token_in_the_address_opens_its_session(tmp_path):
    async with guarded(tmp_path) as (lab, http):
        for session, status in (("mine", 200), ("theirs", 404)):
            params = {"token": token(sessions=("mine",))}
            async with http.get(f"{lab.url}/sessions/{session}/events", params=params) as answer:
                assert answer.status == status


@pytest.mark.asyncio
async def test_a_post_needs_a_token_for_the_session_of_its_body(tmp_path):
    async with guarded(tmp_path) as (lab, http):
        headers = bearer(token(sessions=("mine",), scope="write"))
        body = {"id": "theirs", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]}
        assert (await http.post(f"{lab.url}/sessions", json=body, headers=headers)).status == 404
        body = {"threadId": "theirs", "messages": []}
        assert (await http.post(f"{lab.url}/sessions/mine/events", json=body, headers=headers)).status == 400
        assert (await http.post(f"{lab.url}/sessions/theirs/events", json=body, headers=headers)).status == 404
        # Without a token the body is not read.
        assert (await http.post(f"{lab.url}/sessions", data=b"{")).status == 401


def test_tokens_that_were_changed_are_refused():
    valid = token(sessions=("mine",))
    payload, _, mark = valid.partition(".")
    assert SIGNER.claims(valid, 0).sessions == ("mine",)
    other = Signer("another key, long enough").token(Claims(sessions=("mine",), expires=SOON))
    changed = [payload, f"{payload}.", f".{mark}", f"{mark}.{payload}", other, valid[:-1], "é.é", "", "." * 20000]
    changed += [f"{token(sessions=('theirs',)).partition('.')[0]}.{mark}"]
    assert [SIGNER.claims(each, 0) for each in changed] == [None] * len(changed)


def test_a_token_has_one_form():
    """Of the last character of base64, some bits have no meaning: other forms would be counted as other tokens."""
    valid = token(sessions=("mine",))
    payload, _, mark = valid.partition(".")
    others = {f"{payload}.{mark[:-1]}{last}" for last in string.ascii_letters + string.digits + "-_"} - {valid}
    others |= {
        f"{payload}=.{mark}",
        f"{payload}.{mark}=",
        f" {valid}",
        f"{valid}\n",
        f"{payload}.{mark}.",
        f"{valid}.x",
    }
    assert [SIGNER.claims(each, 0) for each in others] == [None] * len(others)


def signed(payload, key):
    """A token made by another program that has the key."""
    mark = hmac.digest(key, payload, "sha256")
    return ".".join(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in (payload, mark))


def test_what_the_key_signs_for_another_purpose_is_no_token():
    claims = msgspec.json.encode(Claims(sessions=("mine",), expires=SOON))
    derived = hashlib.sha256(b"reknit screens|" + KEY.encode()).digest()
    assert SIGNER.claims(signed(claims, derived), 0) is not None
    for payload, key in (
        (claims, KEY.encode()),
        (claims, hashlib.sha256(KEY.encode()).digest()),  # the viewer's, if it had the same secret
        (b'{"sessions":["mine"],"expires":%d,"aud":"viewer"}' % SOON, derived),
        (b'{"sessions":["mine"],"scope":"admin","expires":%d}' % SOON, derived),
        (b'{"sessions":["mine"]}', derived),
        (b'{"sessions":["mine"],"expires":1e99}', derived),
        (b"\xff", derived),
        (b"[" * 5000, derived),
        (b"", derived),
    ):
        assert SIGNER.claims(signed(payload, key), 0) is None
    assert SIGNER.claims(KEY, 0) is None


RAW = [
    (b"GET /sessions/mine/events?token=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", {b"200"}, {b"401"}),
    (b"GET /sessions/theirs/events?token=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", {b"404"}, {b"401"}),
    (b"GET /sessions/mine/events?as=no&token=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", {b"400"}, {b"400"}),
    (b"GET /sessions/mine/messages?token=%s HTTP/1.1\r\nHost: localhost\r\n\r\n", {b"500"}, {b"401"}),
    (b"GET /sessions/mine/events?token=%s HTTP/1.0\r\nHost: localhost\r\n\r\n", {b"505"}, {b"505"}),
    (b"GET /sessions/mine/events?token=%s HTTP/9.9.9\r\nHost: localhost\r\n\r\n", {b"400"}, {b"400"}),
    (b"GET /sessions/mine/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", {b"200"}, {b"401"}),
    (b"GET /sessions/mine/events HTTP/1.1\r\nHost: localhost\r\nAuthorization bearer %s\r\n\r\n", {b"400"}, {b"400"}),
    (b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n", {b"404"}, {b"404"}),
    (b"POST /sessions?token=%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n{", {b"400"}, {b"401"}),
    (b"OPTIONS /x?token=%s HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\n\r\n", {b"403"}, {b"403"}),
]
BAD = [
    b"SECRET",
    b"SECRET.SECRET",
    b"SECRET\xff\xfe",
    b"%ff%feSECRET",
    b"%00SECRET",
    b"SECRET" * 1300,
    b"SECRET" * 4000,
]


@pytest.mark.asyncio
@pytest.mark.parametrize("case", RAW)
async def test_no_log_has_a_token(tmp_path, monkeypatch, caplog, case):
    """After an answer, a refusal, a fault of the server, and bytes that are no request."""
    request_bytes, valid, invalid = case
    caplog.set_level("DEBUG")

    def fails(self):
        raise ValueError(good.decode())

    good = token(sessions=("mine",)).encode()
    monkeypatch.setattr(AiSdkWriter, "messages", fails)
    async with guarded(tmp_path) as (lab, _):
        port = int(lab.url.rpartition(":")[2])
        for value, statuses in ((good, valid), *((each, invalid | {b"400"}) for each in BAD)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_bytes % value)
            line = await asyncio.wait_for(reader.readline(), 20)
            writer.transport.abort()
            assert line.split()[1] in statuses
    assert "SECRET" not in caplog.text
    assert good.decode() not in caplog.text
    assert good.partition(b".")[2].decode() not in caplog.text


def test_a_token_has_an_end_and_names_sessions():
    assert SIGNER.claims(token(sessions=("mine",), expires=100), 99) is not None
    assert SIGNER.claims(token(sessions=("mine",), expires=100), 100) is None
    with pytest.raises(InputError) as empty:
        SIGNER.token(Claims(expires=SOON, prefixes=("",)))
    assert empty.value.code == "token_empty"
    with pytest.raises(InputError) as short:
        Signer("short")
    assert short.value.code == "key_short"


@pytest.mark.asyncio
async def test_a_stream_ends_with_its_token(tmp_path):
    async with guarded(tmp_path) as (lab, http):
        headers = bearer(token(sessions=("mine",), expires=int(time.time()) + 1))
        async with http.get(f"{lab.url}/sessions/mine/events", headers=headers) as answer:
            stream = Stream(answer)
            await stream.next()
            with pytest.raises(aiohttp.ClientPayloadError):
                await stream.rest()


@pytest.mark.asyncio
async def test_there_is_no_list_of_sessions(tmp_path):
    async with guarded(tmp_path) as (lab, http):
        headers = bearer(token(prefixes=("m",)))
        for path in ("/", "/sessions", "/sessions/", "/search", "/sessions/mine"):
            async with http.get(lab.url + path, headers=headers) as answer:
                assert answer.status == (405 if path == "/sessions" else 404)  # it takes POST
                assert "theirs" not in await answer.text()


@pytest.mark.asyncio
async def test_only_named_sites_may_ask(tmp_path):
    site, other = "https://app.example.com", "https://app.example.com.evil.example"
    async with guarded(tmp_path, origins=(site,)) as (lab, http):
        url, headers = f"{lab.url}/sessions/mine/events", bearer(token(sessions=("mine",)))
        fetch = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
        async with http.get(url, headers={**headers, **fetch, "Origin": site}) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, site)
            assert "Access-Control-Allow-Credentials" not in answer.headers
            assert answer.headers["Vary"] == "Origin"
        async with http.options(url, headers={"Origin": site, "Access-Control-Request-Method": "POST"}) as answer:
            assert answer.status == 204
            assert "authorization" in answer.headers["Access-Control-Allow-Headers"]
        async with http.options(url, headers={"Origin": other}) as answer:
            assert (answer.status, answer.headers.get("Access-Control-Allow-Origin")) == (403, None)
        async with http.get(url, headers={**headers, **fetch, "Origin": other}) as answer:
            assert (answer.status, answer.headers.get("Access-Control-Allow-Origin")) == (403, None)
        # An error can be read by the site that may ask.
        async with http.get(url, headers={"Origin": site}) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (401, site)
        async with http.get(url, headers={**headers, "Host": "rebound.example"}) as answer:
            assert answer.status == 421


@pytest.mark.asyncio
async def test_limits(tmp_path):
    async with guarded(tmp_path, limits=Limits(of_peer=1), now=lambda: 1000.0) as (lab, http):
        url, headers = f"{lab.url}/sessions/mine/events", bearer(token(sessions=("mine",)))
        async with http.get(url, headers=headers), http.get(url, headers=headers) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (429, "5")
        other = bearer(token(sessions=("mine",), expires=SOON + 1))
        async with http.get(url, headers=other) as answer:
            assert answer.status == 200
    async with guarded(tmp_path / "rate", limits=Limits(requests=3, per_second=1), now=lambda: 1000.0) as (lab, http):
        url = f"{lab.url}/sessions/mine/events"
        statuses = [(await http.get(url)).status for _ in range(4)]
        assert statuses == [401, 401, 401, 429]
    async with guarded(tmp_path / "all", limits=Limits(connections=0)) as (lab, http):
        assert (await http.get(f"{lab.url}/sessions/mine/events", headers=headers)).status == 503


@pytest.mark.asyncio
async def test_requests_of_an_address_are_counted_behind_a_proxy_and_are_allowed_again_later(tmp_path):
    clock = [1000.0]
    hosts, limits = HostNames(proxies=["127.0.0.1"]), Limits(requests=2, per_second=0.5)
    gate = Gate(hosts, SIGNER, limits=limits, now=lambda: clock[0])
    async with screens_of(tmp_path, gate=gate) as (lab, http):
        lab.publish(ItemStarted(item_id="a", item_type="text"), session="mine")
        headers = bearer(token(sessions=("mine",)))

        async def status(address, **given):
            headers_of = {"X-Forwarded-For": f"forged, {address}", **headers, **given}
            async with http.get(f"{lab.url}/sessions/mine/messages", headers=headers_of) as answer:
                return answer.status

        assert [await status("10.0.0.1") for _ in range(3)] == [200, 200, 429]
        # Another address has its own allowance, and another token of the same address has not.
        assert await status("10.0.0.2") == 200
        assert await status("10.0.0.1", **bearer(token(sessions=("mine",), expires=SOON + 1))) == 429
        clock[0] += 2
        assert [await status("10.0.0.1") for _ in range(2)] == [200, 429]
        clock[0] += 3600
        assert [await status("10.0.0.1") for _ in range(3)] == [200, 200, 429]


HOSTILE = [
    "</script><script>alert(1)</script>",
    '\n\ndata: {"type":"RUN_ERROR","message":"forged"}\n\n',
    "\r\nevent: reload\r\n\r\n",
    "\u2028\u2029\x00\x1b[31m",
    "data: [DONE]",
]


@pytest.mark.asyncio
@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("form", ["items", "ag-ui", "ai-sdk"])
async def test_content_is_data_and_no_frame(tmp_path, text, form):
    items = (
        ItemStarted(item_id=text, item_type="text", parent_tool_use_id=text),
        ItemDelta(item_id=text, delta_type="text_delta", content=text),
        AgentError(message=text, seq=0),
        ItemStarted(item_id="b", item_type="tool_use", name=text),
        ItemCompleted(item_id="b", incomplete=True, reason=text),
        ItemCompleted(item_id=text),
        TurnStop(stop_reason=text),
    )
    async with screens_of(tmp_path) as (lab, http):
        lab.publish(items[0], run=text)
        async with http.get(f"{lab.url}/sessions/s/events?as={form}") as answer:
            stream, found = Stream(answer), []
            lab.publish(*items[1:], run=text)
            while not found or found[-1]["type"] not in {"turn/stop", "RUN_FINISHED", "finish"}:
                found.append(await stream.next())
    texts = [event.get("delta", event.get("content")) for event in found]
    assert text in texts
    assert "RUN_ERROR" not in {event["type"] for event in found}
    if form == "ag-ui":
        AgUiClient().respond(found)
    if form == "ai-sdk":
        AiSdkClient().respond(found)


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", " https://example.org", "//example.org"])
async def test_addresses_that_could_run_a_script_are_no_links(tmp_path, url):
    citations = json.dumps([{"url": url, "title": "T"}, {"url": "https://example.org/a"}]).encode()
    async with screens_of(tmp_path) as (lab, http):
        lab.publish(ItemStarted(item_id="a", item_type="text"))
        async with http.get(f"{lab.url}/sessions/s/events?as=ai-sdk") as answer:
            value = {"type": "item/completed", "item_id": "a", "extras": {"citations": json.loads(citations)}}
            lab.publish(value, {"type": "turn/stop"})
            found = await Stream(answer).until("finish")
    assert [chunk["url"] for chunk in found if chunk["type"] == "source-url"] == ["https://example.org/a"]


# The user's words.


def ag_ui_body(*messages, **more):
    return {"threadId": "s", "runId": "x", "messages": list(messages), **more}


HI = {"id": "m1", "role": "user", "content": "Hi"}
HI_PARTS = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
ANSWER = (
    ItemStarted(item_id="t", item_type="text"),
    ItemDelta(item_id="t", delta_type="text_delta", content="Hello."),
    ItemCompleted(item_id="t"),
    TurnStop(stop_reason="end_turn"),
)


async def asked(http, lab, path, body, *items):
    """Return the events of a POST; these items are published once its head has come."""
    async with http.post(lab.url + path, json=body) as answer:
        assert answer.status == 200
        lab.publish(*items)
        return await Stream(answer).rest()


@pytest.mark.asyncio
@pytest.mark.parametrize("form", ["ag-ui", "ai-sdk"])
async def test_a_message_becomes_a_turn_once(tmp_path, form):
    path, body = {
        "ag-ui": ("/sessions/s/events", ag_ui_body(HI)),
        "ai-sdk": ("/sessions", {"id": "s", "trigger": "submit-message", "messages": [HI_PARTS]}),
    }[form]
    async with screens_of(tmp_path, takes_input=True) as (lab, http):
        found = await asked(http, lab, path, body, *ANSWER)
        assert lab.turns.all == [("s", "m1", {"role": "user", "content": [{"type": "text", "text": "Hi"}]})]
        # The same POST again: the message is known, and its answer is shown.
        again = await asked(http, lab, path, body)
        assert len(lab.turns.all) == 1
    if form == "ag-ui":
        for events in (found, again):
            client = AgUiClient()
            client.messages.append({"id": "m1", "role": "user", "content": "Hi"})
            client.respond(events)
            assert [(each["id"], each["content"]) for each in client.messages] == [("m1", "Hi"), ("t", "Hello.")]
    else:
        for chunks in (found, again):
            client = AiSdkClient()
            assert chunks.pop() == "[DONE]"
            client.respond(chunks)
            assert [part["text"] for part in client.messages[0]["parts"]] == ["Hello."]


@pytest.mark.asyncio
async def test_the_streams_copy_of_a_message_is_not_shown_again(tmp_path):
    copy = {"type": "item/started", "item_id": "u", "item_type": "user_message", "content": "Hi"}
    async with screens_of(tmp_path, takes_input=True) as (lab, http):
        events = await asked(http, lab, "/sessions/s/events", ag_ui_body(HI), copy, *ANSWER)
    client = AgUiClient()
    client.messages.append({"id": "m1", "role": "user", "content": "Hi"})
    client.respond(events)
    assert [each["id"] for each in client.messages] == ["m1", "t"]


@pytest.mark.asyncio
async def test_a_message_without_an_answer_ends_with_an_error(tmp_path):
    async with screens_of(tmp_path, takes_input=True, answer_seconds=0) as (lab, http):
        (event,) = await asked(http, lab, "/sessions/s/events", ag_ui_body(HI))
        assert (event["type"], event["code"]) == ("RUN_ERROR", "answer_timeout")
        body = {"id": "s", "trigger": "submit-message", "messages": [{**HI_PARTS, "id": "m2"}]}
        chunk, end = await asked(http, lab, "/sessions", body)
        assert (chunk["type"], end) == ("error", "[DONE]")
        # Sent again, the message is not written again.
        await asked(http, lab, "/sessions", body)
        assert [key for _, key, _ in lab.turns.all] == ["m1", "m2"]


@pytest.mark.asyncio
async def test_a_message_has_the_trace_of_its_request(tmp_path):
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with screens_of(tmp_path, takes_input=True, answer_seconds=0) as (lab, http):
        for number, traced in enumerate(({"traceparent": parent, "tracestate": "a=1"}, {"traceparent": "00-1"})):
            body = ag_ui_body({**HI, "id": f"m{number}"})
            async with http.post(f"{lab.url}/sessions/s/events", json=body, headers=traced) as answer:
                await answer.read()
    assert lab.turns.traces == [(("traceparent", parent.encode()), ("tracestate", b"a=1")), ()]


@pytest.mark.asyncio
async def test_a_server_without_input_writes_nothing(tmp_path):
    async with screens_of(tmp_path) as (lab, http):
        lab.publish(*ANSWER)
        assert (await http.post(f"{lab.url}/sessions/s/events", json=ag_ui_body(HI))).status == 409
        body = {"id": "s", "messages": [HI_PARTS]}
        assert (await http.post(f"{lab.url}/sessions", json=body)).status == 409
        resumed = ag_ui_body(HI, forwardedProps={"reknit": {"resume": True}})
        assert (await http.post(f"{lab.url}/sessions/s/events", json=resumed)).status == 200
        assert lab.turns.all == []


@pytest.mark.asyncio
async def test_a_token_that_reads_does_not_write(tmp_path):
    async with guarded(tmp_path, takes_input=True, answer_seconds=0) as (lab, http):
        body = {"threadId": "mine", "messages": [HI]}
        for scope, status, count in (("read", 409, 0), ("write", 200, 1)):
            headers = bearer(token(sessions=("mine",), scope=scope))
            async with http.post(f"{lab.url}/sessions/mine/events", json=body, headers=headers) as answer:
                assert answer.status == status
                await answer.read()
            assert len(lab.turns.all) == count


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "no id"},
        {"id": "x" * 201, "role": "user", "content": "long id"},
        {"id": "m", "role": "user", "content": []},
        {"id": "m", "role": "user", "content": 1},
        {"id": "m", "role": "user", "content": [{"type": "image", "source": {"type": "url", "value": "file:///etc"}}]},
        {"id": "m", "role": "user", "parts": [{"type": "file", "url": "https://example.org/x"}]},
        {"id": "m", "role": "user", "parts": ["text"]},
    ],
)
async def test_messages_that_cannot_become_turns_are_refused(tmp_path, message):
    async with screens_of(tmp_path, takes_input=True) as (lab, http):
        assert (await http.post(f"{lab.url}/sessions/s/events", json=ag_ui_body(message))).status == 400
        assert lab.turns.all == []


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b"\xff", b'{"messages":1}', b"[" * 100_000, b'{"threadId":"s","id":3}']
)
async def test_bodies_that_no_client_sends_are_refused(tmp_path, body):
    async with screens_of(tmp_path, takes_input=True) as (lab, http):
        for path in ("/sessions/s/events", "/sessions"):
            assert (await http.post(lab.url + path, data=body)).status == 400
        assert lab.turns.all == []
        await asyncio.sleep(0)
