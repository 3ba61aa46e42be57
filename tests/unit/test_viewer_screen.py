"""A session's stream on a page, row by row, and the change of the page by each record."""

import pytest
from browser import HOSTILE
from msgspec import structs
from stream_pages import CALL, START, Rows, answer, completed, delta, entries, html_of, recorded, screen_of, shown

from reknit.pipeline.viewer.streams.screen import DEEPEST, TEXT, Screen


def words_of(row):
    """Return a row in words: its depth, its kind, and its marks without their signs."""
    return ">" * row["depth"] + " ".join([row["kind"], *(mark for mark in row["badges"] if len(mark) > 1)])


# Each session's rows as a reader sees them, without out-of-band rows.
STREAMS = {
    "stream-plain": "text, result",
    "blackout": "text promoted, result",
    "blackout-tools": "notice, thinking promoted, text promoted, call promoted, text promoted, result",
    "partial": "thinking, text promoted, result",
    "retry": "text retracted, notice, text, result",
    "silent-replacement": "text retracted, text promoted, result",
    "replaced-thinking": "thinking retracted, text retracted, thinking promoted, text promoted, result",
    "second-call-cut": "text, call, call retracted, notice, text, result",
    "sub-agent": "text, call, >text, text retracted, text promoted, text, result, result",
    "killed": "thinking doubtful, text incomplete, diagnosis",
    "killed-in-call": "text doubtful, call incomplete, diagnosis",
    "never-shown": "text, result not on the screen",
    "refused": "notice, result error not on the screen",
    "recorded-calls": "text retracted, text promoted, call promoted, text, result",
    "codex-retry": "notice, text, call, text, notice, text said again, result",
    "gemini-doubled": "user replayed, text, call, text retracted, call, text doubtful, result",
}


@pytest.mark.parametrize("session", STREAMS)
def test_a_stream_is_shown_by_its_outcome(session):
    rows = shown(*recorded(session))
    assert ", ".join(words_of(row) for row in rows if "kind-aside" not in row["classes"]) == STREAMS[session]


@pytest.mark.parametrize(
    ("items", "words", "meaning"),
    [
        ([{**START, "text": "All.", "origin": "promoted"}, completed()], "All.", "It never streamed; the complete"),
        ([START, delta("cut"), {"type": "item/retracted", "item_id": "a"}], "cut", "Taken back: a later attempt"),
        ([START, delta("cut"), completed(incomplete=True, reason="killed")], "cut", "Its end never came: killed."),
        ([START, completed(text="x", doubtful="end")], "x", "The program does not say whether this is the whole"),
        ([START, completed(text="x", doubtful="attempt")], "x", "The program does not say whether it gave this up"),
        ([CALL, delta('{"a": [1', item="c")], '{"a": [1', None),
        ([CALL, delta('{"a":', item="c"), completed("c", input={"a": 1})], '{\n  "a": 1\n}', None),
        ([{**START, "item_type": "user_message", "content": [{"type": "text", "text": "Hi"}]}], "Hi", None),
    ],
)  # fmt: skip
def test_an_item_shows_its_text_and_its_outcome(items, words, meaning):
    (row,) = shown(*items)
    assert row["words"] == words
    assert [found.startswith(meaning) for found in row["meanings"]] == ([] if meaning is None else [True])


def test_a_repeated_text_links_to_its_first_occurrence():
    said = {**START, "item_id": "b", "repeats": "a", "text": "x"}
    first, again = shown(START, completed(text="x"), said, completed("b"))
    assert (words_of(again), again["links"]) == ("text said again", [f"#{first['id']}"])


def test_a_result_is_shown_at_its_call_and_the_last_one_counts():
    (row,) = shown(CALL, answer(content="old"), answer(content="no such file", is_error=True))
    assert row["answers"] == ["no such file"]
    assert "error" in row["badges"]


def test_a_result_before_its_call_is_attached_to_it_later():
    alone = shown(answer())
    assert [words_of(row) for row in alone] == ["answer no call"]
    (row,) = shown(answer(), CALL)
    assert (words_of(row), row["answers"]) == ("call streaming", ["files"])


def test_result_blocks_that_are_not_text_are_shown_as_json():
    (row,) = shown(CALL, {**answer(), "content": ["plain", {"type": "image", "source": {"n": 1}}]})
    assert row["answers"] == ["plain", '{\n  "type": "image",\n  "source": {\n    "n": 1\n  }\n}']


def test_a_result_is_open_if_its_text_was_not_on_the_screen():
    result = {"type": "turn/result", "is_error": False, "result": "Never shown."}
    unseen, seen = shown({**result, "unseen": True, "expanded": True, "seq": 1}, {**result, "seq": 2})
    assert (unseen["open"], unseen["words"]) == ([True], "Never shown.")
    assert seen["open"] == [False]


def test_a_diagnosis_is_an_actionable_paragraph():
    why = {"reason": "SIGKILL", "cause": "stopped", "error": "overloaded_error", "counts": {"text_delta": 2}}
    wrote = {"head": "It said", "tail": "and so on", "length": 1234, "repeats": True}
    (row,) = shown({"type": "turn/diagnosis", **why, **wrote, "seq": 1})
    assert " ".join(row["text"].split()).partition(":01 ")[2] == (
        "The run did not finish: somebody stopped it. Whoever ended it said “SIGKILL”. The provider's own code is "
        "overloaded_error. The model had written 1,234 characters, and the end is one passage repeated. "
        "It began with It said It ended with and so on Events: text_delta 2"
    )


def test_unknown_items_are_shown_unchanged():
    rows = shown(
        {**START, "item_type": "hologram", "raw": {"type": "hologram", "beam": 7}},
        {"type": "agent/unrecognized", "reason": "unknown event", "event": {"n": 1}, "seq": 1},
        (b"\xff not json", ()),
        (b'{"type": "later/version", "what": "new"}', ()),
    )
    assert ['"beam": 7' in rows[0]["text"], '"n": 1' in rows[1]["text"]] == [True, True]
    assert ["not json" in rows[2]["text"], '"what": "new"' in rows[3]["text"]] == [True, True]


def test_sub_agents_are_nested_in_their_call_up_to_a_maximum_depth():
    calls = [{**CALL, "item_id": "c0"}]
    calls += [{**CALL, "item_id": f"c{n}", "parent_tool_use_id": f"c{n - 1}"} for n in range(1, 10)]
    orphan = {**START, "parent_tool_use_id": "nobody"}
    own = {**START, "item_id": "b", "parent_tool_use_id": "b"}
    depths = [row["depth"] for row in shown(*calls, orphan, own)]
    assert depths == [0, 1, 2, 3, 4, 5, *[DEEPEST] * 4, 0, 0]


def test_a_run_is_named_where_it_begins():
    screen = Screen()
    for run in ("one", "one", "two"):
        for entry in entries({**START, "item_id": str(len(screen.rows))}, run=run):
            screen.apply(structs.replace(entry, offset=len(screen)))
    assert ["Run" in row["text"] for row in Rows(html_of(screen)).rows] == [True, False, True]


def changed(*items):
    """Return for each record True if its row is new, False if redrawn, the added text with its position, or None."""
    _, changes = screen_of(*items)
    return [change and ((change.added, change.at) if change.added else change.new) for change in changes]


def test_a_record_changes_only_its_own_part_of_a_page():
    # fmt: off
    assert changed(
        START, delta("Hel"), delta("lo", 3), delta("lo", 3), delta("ello!", 1), completed(), delta("late", 6),
        {"type": "turn/delta", "model": "m"}, {"type": "item/retracted", "item_id": "a"}, completed(), START,
        {"type": "agent/error", "message": "x", "seq": 4}, {"type": "agent/error", "message": "x", "seq": 4},
        delta("of nobody", item="z"), completed("z"), {"type": "item/retracted", "item_id": "z"},
    ) == [
        True, ("Hel", 0), ("lo", 3), None, ("!", 5), False, None,
        None, False, None, None,
        True, None,
        None, None, None,
    ]
    # fmt: on


def test_a_text_is_shown_up_to_a_bound_and_then_stays():
    long = "x" * (TEXT - 1)
    screen, changes = screen_of(START, delta(long), delta("yz", TEXT - 1), delta("more", TEXT + 1))
    assert [change and (change.new, len(change.added)) for change in changes] == [
        (True, 0), (False, TEXT - 1), (False, 0), None,
    ]  # fmt: skip
    (row,) = Rows(html_of(screen)).rows
    assert row["words"] == f"{long}y… 5 more characters"


@pytest.mark.parametrize("poison", [*HOSTILE, "\u202e\u200b", "x" * 1_000_000])
def test_any_content_of_a_record_is_text_on_the_page(poison):
    known = Rows(html_of(screen_of(*[item for _, item in every("plain")])[0])).tags
    html = html_of(screen_of(*[item for _, item in every(poison)])[0], limit=400)
    assert Rows(html).tags <= known | {"span"}
    assert len(html) < 100_000


def every(words):
    """Yield records with the same words in every field."""
    item = {"item_id": words, "item_type": words, "text": words, "name": words, "tool_server": words,
            "tool_source": words, "origin": "promoted", "repeats": words, "raw": {words: words}}  # fmt: skip
    asides = {
        "session/init": ("model", "cwd", "agent_version"), "session/status": ("status",), "turn/stop": ("stop_reason",),
        "task/started": ("description",), "task/notification": ("status", "summary"), "session/summary": ("summary",),
        "process/stderr": ("text",),
    }  # fmt: skip
    yield "item", {"type": "item/started", **item}
    yield "call", {"type": "item/started", **item, "item_id": words + "c", "item_type": "tool_use", "input": words}
    yield "answer", answer(words + "c", words, is_error=True)
    yield "cut", completed(words, incomplete=True, reason=words)
    yield "withdrawn", {"type": "item/retracted", "item_id": words, "reason": words}
    yield "notice", {"type": "agent/error", "message": words, "code": words, "willRetry": True, "seq": 1}
    yield (
        "result",
        {"type": "turn/result", "is_error": True, "result": words, "subtype": words, "unseen": True, "seq": 2},
    )
    diagnosis = {"reason": words, "cause": "other", "error": words, "head": words, "tail": words, "counts": {words: 1}}
    yield "diagnosis", {"type": "turn/diagnosis", **diagnosis, "length": 20_000_000, "seq": 3}
    yield "unknown", {"type": "agent/unrecognized", "reason": words, "text": words, "seq": 4}
    for kind, fields in asides.items():
        yield kind, {"type": kind, **dict.fromkeys(fields, words)}
