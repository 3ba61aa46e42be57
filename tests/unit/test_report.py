"""The report for a migration: requests of a log pass through a shadow's stage, and the report lists the outcomes."""

from __future__ import annotations

import json

import msgspec
import pytest
from browser import HOSTILE, needs_browser, open_page
from build import called, image, png, result, said, user

from reknit.pipeline.cli.reports import lines_of
from reknit.pipeline.cli.requests import Places, read_line
from reknit.pipeline.pages import render
from reknit.pipeline.report import Answered, Day, EqualImages, Logged, Mend, Refusal, Report, Tally, Unjudged
from reknit.pipeline.serve.mirrored import Conversations
from reknit.pipeline.stages.base import Record
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import DEAD_LETTERS, HISTORY_FIXES

HI = user("hi")


def line(*messages, program="crew/1.4", **more):
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages, **more}
    logged = {"url": "https://api.anthropic.com/v1/messages", "program": program, "body": body}
    return json.dumps(logged).encode()


LOG = (
    line(HI),
    line(HI, called("a"), user("no result")),
    line(HI, called("a"), user("no result"), said("ok"), user("go on")),  # broken as before, but repaired by then
    line(user("   "), program="bots/2"),
    line(user("x"), previous_response_id="resp_1", program="bots/2"),
    line({"role": "nobody", "content": "x"}, program="bots/2"),
)


def tallied(lines):
    """Return a shadow's report on a log, one record a second, each line on its own day."""
    conversations, stage, inputs, tally = Conversations(), TurnsStage(), [], Tally()
    for day, each in enumerate(lines):
        logged = read_line(each, Places(producer="program"))
        session, records = conversations.records_of(logged)
        for number, record in enumerate(records, 1):
            headers = {"producer": logged.producer.encode()}
            if number == len(records):
                headers["judged"] = logged.judged
            value = msgspec.json.encode(record)
            place = {"partition": 0, "offset": len(inputs), "key": session.encode(), "timestamp": day}
            inputs.append(Record(value=value, headers=(*headers.items(),), **place))
    outputs = [(each, record) for record in inputs for each in stage.process([record]).outputs]
    for each, record in outputs:
        if each.topic == DEAD_LETTERS:
            tally.count_letter(each.key, dict(each.headers), f"day {record.timestamp}")
    for each, record in outputs:
        if each.topic == HISTORY_FIXES:
            tally.count_fix(each.key, each.value, dict(each.headers), f"day {record.timestamp}")
    for record in inputs:
        tally.count_input(record.key, record.partition, record.offset, dict(record.headers), f"day {record.timestamp}")
    return tally.report()


UNANSWERED = (
    "`tool_use` ids were found without `tool_result` blocks immediately after: …. Each `tool_use` block must have a "
    "corresponding `tool_result` block in the next message."
)
EMPTY = "messages: at least one message is required"


def test_the_report_of_a_shadow_on_a_log():
    report = tallied(LOG)
    assert report == Report(
        sessions=4,
        mended_sessions=2,
        logged=[
            Logged(target="anthropic", producer="crew/1.4", requests=3, refused=2, prevented=2),
            Logged(target="anthropic", producer="bots/2", requests=1, refused=1, prevented=0),
        ],
        refusals=[
            Refusal(target="anthropic", rule="ANT-07", message=UNANSWERED, producer="crew/1.4", requests=2),
            Refusal(
                target="anthropic",
                rule="ANT-05",
                message="text content blocks must contain non-whitespace text",
                producer="bots/2",
                requests=1,
            ),
        ],
        rejections=[Refusal(target="anthropic", rule="ANT-01", message=EMPTY, producer="bots/2", requests=1)],
        mends=[
            Mend(
                code="blank_dropped",
                target="",
                producer="bots/2",
                summary="a text block with nothing but whitespace was left out",
                avoids="messages: text content blocks must be non-empty",
                lossless=True,
                observed=False,
                mends=1,
                sessions=1,
            ),
            Mend(
                code="result_synthesised",
                target="",
                producer="crew/1.4",
                summary="a call without a result got an error result that says so",
                avoids="`tool_use` ids were found without `tool_result` blocks immediately after",
                lossless=False,
                observed=False,
                mends=1,
                sessions=1,
            ),
        ],
        unjudged=[
            Unjudged(topic="agent.turns.v1", code="chained", records=1, sessions=1),
            Unjudged(topic="agent.turns.v1", code="unknown_role", records=1, sessions=1),
        ],
        answered=[],
        days=[
            Day(day="day 1", mends=1, rejections=0, refused=1),
            Day(day="day 2", mends=0, rejections=0, refused=1),
            Day(day="day 3", mends=1, rejections=1, refused=1),
        ],
    )
    assert list(lines_of(report)) == TOLD.strip().split("\n")


TOLD = f"""
sessions: 4, of them mended: 2
dead letters: 3 (records not processed: 2, requests rejected: 1, requests refused by providers: 0)

Requests as they were sent, read from a log
       3  anthropic  crew/1.4; would be refused: 2, leave mended: 2, rejected: 0
       1  anthropic  bots/2; would be refused: 1, leave mended: 0, rejected: 1

Errors of providers that these would get
       2  anthropic  ANT-07  crew/1.4: {UNANSWERED}
       1  anthropic  ANT-05  bots/2: text content blocks must contain non-whitespace text

Rejected, since nothing mends it
       1  anthropic  ANT-01  bots/2: {EMPTY}

Mended
       1  all  blank_dropped  bots/2, avoids: messages: text content blocks must be non-empty
       1  all  result_synthesised  crew/1.4, lossy, avoids: `tool_use` ids were found without `tool_result` blocks immediately after

Not judged
       1  agent.turns.v1  chained, sessions: 1
       1  agent.turns.v1  unknown_role, sessions: 1

Nor is judged what no request's shape shows: keys, quotas, tokens, bytes behind URLs, what models answer.
"""  # noqa: E501  lines of a terminal


def letter(code, **said):
    known = {"code": code, "topic": "agent.turns.v1", "partition": "0", "offset": "7", "version": "1", **said}
    return {f"reknit.error.{name.replace('_', '-')}": value.encode() for name, value in known.items()}


def test_missed_refusals_are_reported_and_notes_are_not_dead_letters():
    tally = Tally()
    tally.count_letter(b"s", letter("refused_missed", target="gemini", rule="GEM-06", message="no parts"), "day 0")
    tally.count_letter(b"s", letter("retried", letter="0/1"), "day 0")
    answered = Answered(outcome="missed", target="gemini", rule="GEM-06", message="no parts", requests=1)
    assert tally.report() == msgspec.structs.replace(Tally().report(), answered=[answered])


def test_an_observed_repair_repairs_no_session():
    tally = Tally()
    fix = {"code": "turns_merged", "path": "messages.1", "lossless": True, "turn": 1, "offset": 0, "number": 0}
    tally.count_fix(
        b"s", json.dumps({**fix, "version": "1", "observed": True, "target": "gemini"}).encode(), {}, "day 0"
    )
    report = tally.report()
    assert [(row.code, row.target, row.observed, row.mends) for row in report.mends] == [
        ("turns_merged", "gemini", True, 1)
    ]
    assert (report.mended_sessions, report.days, report.mends_by_code()) == (0, [], [])


@pytest.mark.parametrize("value", [None, b"\xff", b"x" * 20_000], ids=["null", "not UTF-8", "too long"])
def test_an_unreadable_producer_or_verdict_is_ignored(value):
    tally = Tally()
    tally.count_letter(b"s", letter("rejected", rule="ANT-01", message="m") | {"producer": value}, "day 0")
    tally.count_input(b"s", 0, 8, {"judged": value, "producer": value}, "day 0")
    report = tally.report()
    assert [(row.rule, row.producer) for row in report.rejections] == [("ANT-01", "")]
    assert (report.sessions, report.logged) == (1, [])


def test_invalid_dead_letters_and_fixes_raise():
    for count in (lambda: Tally().count_letter(b"s", {}, "day 0"), lambda: Tally().count_fix(b"s", b"", {}, "day 0")):
        with pytest.raises(msgspec.DecodeError):
            count()


@needs_browser
async def test_a_page_shows_hostile_words_as_text_and_a_bar_for_each_row(tmp_path):
    tally = Tally()
    for each in HOSTILE:
        rejected = letter("rejected", rule="nobody's", message=f"{each}: {each}") | {"producer": each.encode()}
        tally.count_letter(b"s", rejected, "day 0")
        tally.count_letter(b"s", letter("refused_unknown", target=each, message=each), "day 0")
        tally.count_letter(b"s", letter(each), "day 0")
        tally.count_input(
            b"s", 0, 8, {"judged": f"{each.replace(' ', '')} ANT-07 {each.replace(' ', '')}".encode()}, "day 0"
        )
    report, file = tally.report(), tmp_path / "report.html"
    file.write_text(render("report.html", report=report, prefix=HOSTILE[0], since=HOSTILE[1]), encoding="utf-8")
    counted = [f"document.querySelectorAll('{each}').length" for each in ("svg.chart", ".bar")]
    opened = await open_page(file, ask=counted)
    assert (opened.requests, opened.dialogs, opened.messages) == ([], [], [])
    assert [each for each in HOSTILE if opened.text.count(each) < 4] == []
    assert opened.values == [3, 1 + 1 + len(report.refusals_by_message())]


def test_an_empty_report_says_so():
    page = render("report.html", report=Tally().report(), prefix="", since="")
    assert "<svg" not in page
    assert "All that the topics hold." in page


def test_equal_images_of_a_session_are_counted():
    tally, shot = Tally(), png(1, 1)

    def count(session, message, kind="turn.appended"):
        tally.count_images(session, msgspec.json.encode({"type": kind, "message": message}))

    for _ in range(3):
        count(b"one", user(image(shot)))
    count(b"one", user(result("a", [image(shot), image(png(2, 2))])))
    linked = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{shot}"}}
    count(b"two", {"role": "user", "content": [linked]})
    count(b"two", {"role": "user", "parts": [{"inlineData": {"mimeType": "image/png", "data": shot}}]})
    # A restored history has the images of the former one.
    count(b"one", [user(image(shot)), user(image(png(2, 2)))], "history.restored")
    tally.count_images(b"one", None)
    tally.count_images(b"one", b"{")
    assert tally.report().equal_images == EqualImages(4, 4 * len(shot), 2)
    line = f"Images that repeat one of their session: 4 ({4 * len(shot)} bytes) in 2 sessions"
    assert line in list(lines_of(tally.report()))
