"""Two requests side by side: aligned rows, folded equal rows, and the differences of a replay."""

import json
import re
from urllib.parse import quote

import pytest
from browser import HOSTILE
from build import call, called, result, said, text, user
from empty_viewer import words
from published_records import OPENED, appended
from viewer_lab import Topics, pages_of, session_of

from reknit.pipeline.diff import COMPARED_TOPICS
from reknit.pipeline.pages import shown
from reknit.pipeline.session import Session
from reknit.pipeline.targets import Setting
from reknit.pipeline.viewer.aligned import Aligned
from reknit.pipeline.viewer.compare import Side, compared
from reknit.topics import AGENT_TURNS, PROVIDER_REQUESTS

BROKEN = (user("Run."), called("a"), user("Wait.", result("a")), said("Yes."), user("Go.", result("x")))


def made(*messages, target="anthropic", **given):
    """A side as the worker makes it."""
    session = Session([target], **given)
    for message in messages:
        session.append(message)
    done = session.request(target)
    return Side(target, done.unjudged, Aligned.of_request(session.turns, done, session.setting))


def published(*messages):
    """A side with nothing but its body."""
    data = json.dumps({"messages": messages}).encode()
    return Side("anthropic", data, Aligned.by_position((), data, "anthropic", Setting(), ()))


def rows(found):
    """Return each shown row: its kind, and the texts of both sides; folded rows as their number."""
    told = []
    for part in found.parts:
        told += [part.same] if part.same else []
        told += [(row.how, *(cell and cell.text for cell in (row.left, row.right))) for row in part.rows]
    return told + ([found.same_after] if found.same_after else [])


def test_equal_rows_are_folded_around_the_differences():
    many = [user("One."), said("Two."), user("Three."), said("Four."), user("Five.")]
    found = compared(made(*many), made(*many, said("Six."), user("Seven.")))
    assert rows(found) == [4, ("same", "Five.", "Five."), ("appeared", None, "Six."), ("appeared", None, "Seven.")]
    found = compared(made(*many), made(many[0], said("Other."), *many[2:]))
    assert rows(found) == [("same", "One.", "One."), ("changed", "Two.", "Other."), ("same", "Three.", "Three."), 2]
    same = compared(made(*many), made(*many))
    assert (same.parts, same.same_after, same.more, same.head, same.fixes) == ([], 5, 0, None, ([], []))


MARKED = user(text("Hello.", cache_control={"type": "ephemeral"}))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([user("Hello.")], [user("Bye.")], [("changed", "Hello.", "Bye.")]),
        ([user("Hello.", "Second.")], [user("Hello.")], [("same", "Hello.", "Hello."), ("vanished", "Second.", None)]),
        ([user("Hello."), user("Second.")], [user("Second.")],
         [("vanished", "Hello.", None), ("same", "Second.", "Second.")]),
        ([user("Hello.")], [MARKED], [("changed", "Hello.", "Hello.")]),
        ([said(call("a", n=1))], [said(call("a", n=1.0))], [("changed", '{\n  "n": 1\n}', '{\n  "n": 1.0\n}')]),
    ],
    ids=["another text", "one that is gone", "one before others", "a cache breakpoint", "another spelling of a number"],
)  # fmt: skip
def test_blocks_of_one_shape_are_aligned_by_their_content(before, after, expected):
    assert rows(compared(published(*before), published(*after))) == expected


def test_differences_that_a_cell_does_not_show_are_listed_as_lines():
    (row,) = compared(published(user("Hello.")), published(MARKED)).parts[0].rows
    assert [line for line in row.lines if line[0] in "+-" and "cache_control" in line] == ['+  "cache_control": {']
    long = "\n".join(f"line {number}" for number in range(40))
    (row,) = compared(published(user(long)), published(user(long.replace("line 20", "another")))).parts[0].rows
    assert [line for line in row.lines if line[0] in "+-"] == ["-line 20", "+another"]


def test_two_targets_are_aligned_by_the_source_block():
    found = compared(made(*BROKEN), made(*BROKEN, target="openai-chat"))
    (part,) = found.parts
    assert found.by_origin
    assert [(row.how, row.left and row.left.path, row.right and row.right.path) for row in part.rows] == [
        ("same", "messages.0.content.0", "messages.0.content"),
        ("same", "messages.1.content.0", "messages.1.tool_calls.0"),
        ("same", "messages.2.content.0", "messages.2.content"),
        ("same", "messages.2.content.1", "messages.3.content"),
        ("same", "messages.3.content.0", "messages.4.content"),
        ("same", "messages.4.content.0", "messages.5.content"),
    ]
    assert [row.left.text for row in part.rows] == ["Run.", "{}", "files", "Wait.", "Yes.", "Go."]


def test_texts_are_aligned_message_by_message():
    found = compared(
        made(user("One."), said("Two."), user("Three."), target="codex-cli"),
        made(user("One."), said("Two!"), user("Three."), target="codex-cli"),
    )
    assert rows(found) == [
        ("same", "### User\nOne.", "### User\nOne."),
        ("changed", "### Assistant\nTwo.", "### Assistant\nTwo!"),
        ("same", "## Current input\nThree.", "## Current input\nThree."),
    ]
    assert found.parts[0].rows[1].lines[-2:] == ("-Two.", "+Two!")


def test_fixes_of_only_one_side_are_listed():
    broken, whole = made(*BROKEN), made(*BROKEN[:1])
    found = compared(whole, broken)
    assert found.fixes[0] == []
    assert {mark.code for mark in found.fixes[1]} == {mark.code for mark in broken.aligned.marks}


def test_of_many_differing_rows_the_first_are_shown():
    found = compared(
        published(*[user(f"a {number}") for number in range(500)]),
        published(*[user(f"b {number}") for number in range(500)]),
    )
    assert (sum(len(part.rows) for part in found.parts), found.more) == (400, 100)


# Pages.


def ids_of(topics, target):
    said_of = [{name: value.decode() for name, value in each.headers} for each in topics.logs[PROVIDER_REQUESTS, 0]]
    return [each["request-id"] for each in said_of if each["target"] == target]


async def test_a_session_alone_compares_its_last_request_with_the_one_before(tmp_path):
    topics = session_of("s/1", user("One."), said("Two."), user("Three."), targets=["anthropic", "openai-chat"])
    first, last = ids_of(topics, "openai-chat")
    async with pages_of(topics, tmp_path) as ask:
        status, page = await ask("/compare?session=s/1")
        assert status == 200
        assert re.findall(r'<a class="mono" href="/sessions/s%2F1/requests/([^"]+)"', page) == [first, last]
        assert "Three." in words(page)
        other = ids_of(topics, "anthropic")[-1]
        assert f"a={last}&amp;b={other}" in page
        status, page = await ask(f"/compare?session=s/1&a={last}&b={other}")
        assert (status, "Right: anthropic" in words(page)) == (200, True)


async def test_an_impossible_comparison_is_explained(tmp_path):
    topics = session_of("s1", user("One."))
    async with pages_of(topics, tmp_path) as ask:
        status, page = await ask("/compare")
        assert (status, "Two requests of a session" in words(page)) == (200, True)
        status, page = await ask("/compare?session=s1")
        assert (status, "s1 has 1 request here, and it takes two to compare" in words(page)) == (200, True)
        status, page = await ask("/compare?session=nobody")
        assert (status, "nobody has no requests here" in words(page)) == (200, True)
        (only,) = ids_of(topics, "anthropic")
        status, _ = await ask(f"/compare?session=s1&a={only}&b=unknown")
        assert status == 404
        status, page = await ask("/compare?replay=../etc/")
        assert (status, "a replay of this pipeline has a prefix" in words(page)) == (400, True)


async def test_hostile_words_are_shown_as_text(tmp_path):
    topics = Topics()
    name = "".join(HOSTILE)
    topics.put_turns(
        name, OPENED, *appended(*(turn for text in HOSTILE for turn in (user(text), said(text))), user("x"))
    )
    async with pages_of(topics, tmp_path) as ask:
        first, last = ids_of(topics, "anthropic")[0], ids_of(topics, "anthropic")[-1]
        status, page = await ask(f"/compare?session={quote(name, safe='')}&a={first}&b={last}")
        assert status == 200
        assert all(str(shown(text)) in page for text in HOSTILE)
        assert not any(text in page for text in HOSTILE if "<" in text)


# A replay with in-memory topics.


@pytest.fixture
def replayed(monkeypatch):
    """Replace both prefixes' topics with two logs of the same session."""
    both = [
        session_of("s1", user("One."), said("Two."), user("Three.")),
        session_of("s1", user("One."), said("Two!"), user("Three.")),
    ]

    async def read_topics(_config, spool, sides, _on_progress, partitions):
        assert partitions in (None, {0})
        for number, topics in enumerate(both):
            for (topic, _), log in topics.logs.items():
                if topic in COMPARED_TOPICS and topic != AGENT_TURNS:
                    for record in log:
                        spool.add_record(number, topic, record)
        return sides

    monkeypatch.setattr("reknit.pipeline.replay.reading.read_topics", read_topics)
    return both[0]


async def test_a_replay_lists_differing_sessions_and_shows_the_place_in_one(replayed, tmp_path):
    async with pages_of(replayed, tmp_path) as ask:
        status, page = await ask("/compare?replay=replay.r1.")
        assert status == 200
        assert {"1compared", "1differ", "0not compared"} <= set(words(page).splitlines())
        assert 'href="/compare?replay=replay.r1.&amp;session=s1"' in page
        status, page = await ask("/compare?replay=replay.r1.&session=s1")
        assert status == 200
        assert re.findall(r'<span class="(?:gone|new)">(.*?)</span>', page) == ["Two<del>.</del>", "Two<ins>!</ins>"]


async def test_a_replay_that_takes_too_long_is_given_up(replayed, monkeypatch, tmp_path):
    async def read_topics(*_):
        raise TimeoutError

    monkeypatch.setattr("reknit.pipeline.replay.reading.read_topics", read_topics)
    async with pages_of(replayed, tmp_path) as ask:
        for _ in range(2):
            status, page = await ask("/compare?replay=replay.r1.")
            assert (status, "reknit diff" in words(page)) == (400, True)
