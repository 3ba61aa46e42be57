"""The example pages in a browser: the unmodified clients of React applications on streams that break off."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from browser import ELSEWHERE, HOSTILE, SETTLED_SECONDS, browsing
from example_pages import CLIENTS, address, blocks, build, content, expected, needs_examples, served, state
from hostile import sessions as hostile_sessions
from screens_lab import screens_of

from reknit.pipeline.screen_server.access import Claims, Signer
from reknit.pipeline.screen_server.gate import Gate
from reknit.pipeline.viewer.guard import Guard
from reknit.topics import SESSION_ITEMS
from reknit.topics.items import (
    AgentError,
    AnyItem,
    ItemCompleted,
    ItemDelta,
    ItemResult,
    ItemStarted,
    TurnDiagnosis,
)

pytestmark = needs_examples

KEY = "a key that is long enough"
VECTORS = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "vectors" / "screens.jsonl").read_text(encoding="utf-8").splitlines()
]
DECODER = msgspec.json.Decoder(AnyItem)
PATIENCE = 30


def items_of(name):
    return next(decoded(vector["items"]) for vector in VECTORS if vector["name"] == name)


def decoded(items):
    return [DECODER.decode(json.dumps(item)) for item in items]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return build(tmp_path_factory.mktemp("pages"))


class Walk:
    """A server, the pages, and a tab."""

    def __init__(self, lab, origin, page, browser):
        self.lab, self.origin, self.page, self._browser = lab, origin, page, browser

    @asynccontextmanager
    async def new_tab(self):
        before = self.page
        async with self._browser.tab(width=1100) as self.page:
            yield
        self.page = before

    async def open(self, name="both", session="s", **options):
        await self.page.go(address(self.origin, name, self.lab.url, session, **options))

    async def connected(self, count=2):
        """Wait until as many clients have a connection."""
        async with asyncio.timeout(PATIENCE):
            while self.lab.feeds.connections < count:  # noqa: ASYNC110  the server has no event for it
                await asyncio.sleep(0.01)

    async def shows(self, items, *protocols):
        """Wait until each client shows exactly these items, each once."""
        for protocol in protocols or CLIENTS:
            whole = [comparable(each, protocol) for each in expected(items)]
            for _ in range(PATIENCE * 20):
                if (found := await self._shown(protocol)) == whole:
                    break
                await asyncio.sleep(0.05)
            assert found == whole, protocol

    async def shows_users(self, items):
        """Wait until each client shows these messages of the user, each once and with its whole text."""
        whole = [(item.item_id, words(item)) for item in items]
        for protocol in CLIENTS:
            for _ in range(PATIENCE * 20):
                shown = [each for each in await blocks(self.page, protocol) if each["kind"] == "user"]
                if (found := [(each["id"], each["text"]) for each in shown]) == whole:
                    break
                await asyncio.sleep(0.05)
            assert found == whole, protocol

    async def both_are(self, state_wanted):
        """Wait until both clients say this of their connection."""
        for protocol in CLIENTS:
            await self.page.until(f"{state(protocol)} === {json.dumps(state_wanted)}", PATIENCE)

    def is_inert(self):
        """Check that no content ran, and that no request went elsewhere."""
        did = self.page.did()
        assert did.dialogs == []
        assert all(url.startswith(self.lab.url) for url in did.requests), did.requests

    async def _shown(self, protocol):
        return [comparable(each, protocol) for each in content(await blocks(self.page, protocol))]


def comparable(shown, protocol):
    """Return a block in the form that both clients keep.

    The AI SDK keeps the parsed input of a call and not its text, and no id of a text that is no item.
    """
    key, kind, text = shown
    if protocol == "ag-ui":
        return shown
    if kind == "text" and key.startswith(("result-", "s:")):
        return "", kind, text
    try:
        return (key, kind, json.loads(text or "{}")) if kind == "call" else shown
    except ValueError:
        return shown


def words(item):
    """Return the user's text as the pages show it: blocks of other types as JSON, without images."""
    if item.content is msgspec.UNSET:
        return item.text
    return "\n".join(
        each["text"] if each["type"] == "text" else json.dumps(each, ensure_ascii=False, separators=(",", ":"))
        for each in json.loads(bytes(item.content))
        if each["type"] != "image"
    )


@asynccontextmanager
async def walking(built, path, *, signer=None):
    async with (
        served(built) as origin,
        screens_of(path, gate=Gate(Guard(), signer, [origin])) as (lab, _),
        browsing() as browser,
        browser.tab(width=1100) as page,
    ):
        yield Walk(lab, origin, page, browser)


async def test_both_pages_show_all_vectors_while_they_come(built, tmp_path):
    async with walking(built, tmp_path) as walk:
        for vector in VECTORS:
            items, runs, session = decoded(vector["items"]), vector["runs"], f"s:{vector['name']}"
            walk.lab.publish(items[0], run=runs[0], session=session)
            # A tab of its own: Chromium keeps the connections of pages that it may go back to.
            async with walk.new_tab():
                await walk.open(session=session)
                for item, run in list(zip(items, runs, strict=True))[1:]:
                    walk.lab.publish(item, run=run, session=session)
                    await asyncio.sleep(0.02)
                await walk.shows(items)
                await walk.shows_users([item for item in items if getattr(item, "item_type", "") == "user_message"])
                walk.is_inert()


@pytest.mark.parametrize("name", ["retraction_of_a_retried_attempt", "parallel_calls_with_results", "cut_turn"])
async def test_both_pages_survive_broken_connections(built, tmp_path, name):
    items = items_of(name)
    async with walking(built, tmp_path) as walk:
        walk.lab.publish(*items[:2])
        await walk.open()
        for place in range(2, len(items), 4):
            await walk.connected()
            await walk.shows(items[:place])
            # The clients lose what they are sent at this moment.
            walk.lab.publish(*items[place : place + 2])
            walk.lab.feeds.stop()
            await walk.both_are("Reconnecting…")
            walk.lab.publish(*items[place + 2 : place + 4])
        await walk.connected()
        await walk.shows(items)
        await walk.both_are("Live")
        walk.is_inert()
        assert await walk.page.violations() == []


@pytest.mark.parametrize("name", list(CLIENTS))
async def test_a_page_is_reloaded_in_mid_stream(built, tmp_path, name):
    items = items_of("retraction_in_an_earlier_turn")
    half = len(items) // 2
    async with walking(built, tmp_path) as walk:
        walk.lab.publish(*items[:half])
        await walk.open(name)
        await walk.connected(1)
        await walk.shows(items[:half], name)
        await walk.page.ask("location.reload()")
        await walk.page.until("document.querySelectorAll('[data-kind]').length === 0")
        await walk.shows(items[:half], name)
        walk.lab.publish(*items[half:])
        await walk.shows(items, name)
        walk.is_inert()


async def test_another_server_continues_in_mid_stream(built, tmp_path):
    items = items_of("parallel_calls_with_results")
    half = len(items) // 2
    async with served(built) as origin, browsing() as browser, browser.tab(width=1100) as page:
        gate = Gate(Guard(), None, [origin])
        async with screens_of(tmp_path / "first", gate=gate) as (lab, _):
            walk = Walk(lab, origin, page, browser)
            lab.publish(*items[:half])
            await walk.open()
            await walk.shows(items[:half])
        # Several attempts of each client fail.
        async with asyncio.timeout(PATIENCE):
            while sum("CONNECTION_REFUSED" in each for each in page.did().messages) < 8:  # noqa: ASYNC110  the tab has no event for it
                await asyncio.sleep(0.1)
        await walk.both_are("Reconnecting…")
        port = urlsplit(lab.url).port
        async with screens_of(tmp_path / "second", gate=gate, topics=lab.topics, port=port) as (second, _):
            await walk.both_are("Live")
            await walk.shows(items[:half])
            second.publish(*items[half:])
            await walk.shows(items)
        walk.is_inert()


async def test_an_answer_that_a_page_missed_is_loaded(built, tmp_path):
    first, second = items_of("two_turns_two_runs"), items_of("text_of_an_api")
    second = [msgspec.structs.replace(item, item_id="z") if hasattr(item, "item_id") else item for item in second]
    async with walking(built, tmp_path) as walk:
        walk.lab.publish(*first[:3])
        await walk.open()
        await walk.shows(first[:3])
        walk.lab.feeds.stop()
        walk.lab.publish(*first[3:])
        walk.lab.publish(*second, run="r9")
        await walk.shows([*first, *second])


TEXTS = (
    *HOSTILE,
    ELSEWHERE,
    "javascript:alert('ran')",
    "\u202egnp.\u2066 \x1b[31m \x00 \x85 \u2028 \ufeff \U000e0041 \ufffd",
)
LINK = "https://127.0.0.1:9/x"
TAGS = {"DIV", "MAIN", "HEADER", "H1", "SMALL", "P", "ARTICLE", "CODE", "SPAN", "PRE", "DETAILS", "SUMMARY", "B", "A"}


def hostile(number, text):
    """Return the items of a session in which every free member is this text."""
    value, key = msgspec.Raw(json.dumps(text).encode()), f"{number} {text}"
    links = [{"type": text, "url": url, "title": text} for url in (text, LINK)]
    citations = msgspec.Raw(json.dumps(links).encode())
    words = msgspec.Raw(json.dumps([{"type": "text", "text": text}, {"type": text, text: text}]).encode())
    block = {"type": text, "name": text, text: text}
    return [
        ItemStarted(item_id=f"u{key}", item_type="user_message", content=words),
        ItemStarted(item_id=f"h{key}", item_type="thinking", text=text),
        ItemCompleted(item_id=f"h{key}", incomplete=True, reason=text),
        ItemStarted(item_id=f"c{key}", item_type="tool_use", name=text, tool_server=text, tool_source="mcp"),
        ItemDelta(item_id=f"c{key}", delta_type="input_json_delta", content=json.dumps({text: text})),
        ItemCompleted(item_id=f"c{key}"),
        ItemResult(item_id=f"c{key}", content=value, is_error=number % 2 == 0),
        ItemStarted(item_id=f"b{key}", item_type=text, raw=msgspec.Raw(json.dumps(block).encode())),
        ItemStarted(item_id=f"p{key}", item_type="text", parent_tool_use_id=text, repeats=text),
        ItemCompleted(item_id=f"p{key}", text=text, extras={"citations": citations}),
        AgentError(message=text, code=text, will_retry=True, seq=1000 + number),
    ]


async def test_hostile_content_in_every_field_is_inert(built, tmp_path):
    items = [item for number, text in enumerate(TEXTS) for item in hostile(number, text)]
    items += [TurnDiagnosis(reason=TEXTS[0], cause="other", error=TEXTS[1], head=TEXTS[2], tail=TEXTS[3], seq=1)]
    async with walking(built, tmp_path) as walk:
        session = TEXTS[2]
        walk.lab.publish(*items, session=session, run=TEXTS[0])
        await walk.open(session=session)
        await walk.shows(items)
        await walk.shows_users([item for item in items if getattr(item, "item_type", "") == "user_message"])
        await asyncio.sleep(SETTLED_SECONDS)
        walk.is_inert()
        assert walk.page.did().messages == []
        assert set(await walk.page.ask("[...document.querySelectorAll('#root *')].map(each => each.tagName)")) <= TAGS
        names = "[...document.querySelectorAll('#root *')].flatMap(each => each.getAttributeNames())"
        assert not [name for name in set(await walk.page.ask(names)) if name.startswith("on")]
        links = await walk.page.ask("[...document.querySelectorAll('#root a')].map(each => each.href)")
        assert set(links) == {LINK}


@pytest.mark.parametrize("name", ["second-call-cut", "sub-agent", "gemini-doubled"])
async def test_hostile_lines_of_a_program_are_inert(built, tmp_path, name):
    # These have half a surrogate pair too, which the worker replaces: no item contains one.
    session, steps = next((key, steps) for key, steps in hostile_sessions() if key.startswith(f"{name} "))
    async with walking(built, tmp_path) as walk:
        for topic, value, headers in steps[:-1]:
            walk.lab.topics.put(topic, session, value, headers)
        walk.lab.put(steps[-1][0], session, *steps[-1][1:])
        records = [each for each in walk.lab.topics.logs[SESSION_ITEMS, 0] if each.key == session.encode()]
        await walk.open(session=session)
        await walk.shows([DECODER.decode(each.value) for each in records])
        walk.is_inert()
        assert set(await walk.page.ask("[...document.querySelectorAll('#root *')].map(each => each.tagName)")) <= TAGS


async def test_a_token_of_one_session_shows_no_other(built, tmp_path):
    signer = Signer(KEY)
    token = signer.token(Claims(sessions=("mine",), expires=int(time.time()) + 600))
    items = items_of("text_of_an_api")
    async with walking(built, tmp_path, signer=signer) as walk:
        for session in ("mine", "theirs"):
            walk.lab.publish(*items, session=session)
        await walk.open(session="mine", token=token)
        await walk.shows(items)
        for given in ({"session": "theirs", "token": token}, {"session": "mine", "token": None}):
            async with walk.new_tab():
                await walk.open(**given)
                await walk.both_are("Not available")
                assert await walk.page.ask("document.querySelectorAll('[data-kind]').length") == 0


async def test_a_message_in_the_middle_of_an_answer_is_shown_in_its_place(built, tmp_path):
    text, more = items_of("text_of_an_api")[:2], ItemStarted(item_id="u", item_type="user_message", text="And Bern?")
    async with walking(built, tmp_path) as walk:
        walk.lab.publish(*text)
        await walk.open()
        await walk.shows(text)
        walk.lab.publish(more, ItemStarted(item_id="z", item_type="text", text="Yes."))
        for protocol in CLIENTS:
            shown = f"[...document.querySelectorAll('[data-client={CLIENTS[protocol]}] [data-kind]')]"
            await walk.page.until(f"{shown}.map(each => each.dataset.id).join() === '{text[0].item_id},u,z'", PATIENCE)
        await walk.shows_users([more])
