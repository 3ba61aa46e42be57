"""A planner's text to items: calls, paths and names, at any chunk split and across restarts."""

import json
import re
from collections import Counter
from itertools import pairwise

import pytest
from build import call as tool_use
from build import text as words_of
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_runs import entries, errors, only

from reknit.pipeline.fixes import digest
from reknit.pipeline.providers.cascade.stream.speech import OutputFilters
from reknit.pipeline.streams.session import Recovery, recover
from reknit.topics.items import AgentError, AgentUnrecognized, ItemRetracted, TurnDiagnosis, TurnStop, Usage

SPEECH = OutputFilters(model="claude-sonnet-4-5")
CALL = '<tool_call>{"name":"ls","arguments":{"path":"/srv"}}</tool_call>'
ECHO = '<tool_result tool_call_id="c1">bin etc</tool_result>'


def text(words):
    return {"type": "text_delta", "text": words}


def thinking(words):
    return {"type": "thinking_delta", "thinking": words}


def done(reason="stop", **members):
    return {"type": "done", "reason": reason} | members


class Run:
    """Events, fed one by one; with ``restarts``, the state is saved and restored in between."""

    def __init__(self, *events, speech=SPEECH, restarts=frozenset()):
        self.items = []
        self.fixes = []
        self.turns = []
        recovery = Recovery("cascade")
        recovery.speak(speech)
        for number, event in enumerate(events):
            data = event if isinstance(event, bytes) else json.dumps(event).encode()
            self.items += recovery.feed(data)
            self._take(recovery)
            if number in restarts:
                recovery = Recovery.restore(recovery.snapshot())
                recovery.speak(speech)
        self.items += recovery.end_run("exit")
        self._take(recovery)

    def _take(self, recovery):
        self.fixes += recovery.take_fixes()
        self.turns += [json.loads(turn.message) for turn in recovery.take_finished()]

    @property
    def content(self):
        (turn,) = self.turns
        assert turn["role"] == "assistant"
        return list(turn["content"])

    @property
    def shown(self):
        return [(entry.item_type, entry.text, entry.incomplete) for entry in entries(self.items)]

    @property
    def kinds(self):
        return [entry.item_type for entry in entries(self.items)]

    @property
    def told(self):
        return [(fix.code, fix.path) for fix in self.fixes]


def test_text_and_calls_become_blocks_in_order():
    run = Run(text(f"Looking.\n{CALL}\n{CALL}\nNow"), text(" I wait."), done("idle_done"))
    assert run.content == [
        words_of("Looking.\n"),
        tool_use("cascade-block-1", path="/srv"),
        tool_use("cascade-block-2", path="/srv"),
        words_of("\nNow I wait."),
    ]
    assert run.kinds == ["text", "tool_use", "tool_use", "text"]
    assert not any(incomplete for _, _, incomplete in run.shown)
    assert run.items[-1] == TurnStop(stop_reason="idle_done")
    assert run.fixes == []


def test_call_ids_continue_across_messages_and_runs():
    recovery = Recovery("cascade")
    for _ in range(2):
        recovery.feed(json.dumps(text(CALL)).encode())
        recovery.feed(b'{"type":"done"}')
        recovery.end_run("exit")
    turns = [json.loads(turn.message) for turn in recovery.take_finished()]
    assert [turn["content"][0]["id"] for turn in turns] == ["cascade-block-0", "cascade-block-1"]


def test_the_sources_polling_format_is_read():
    polled = [("", "Let me see."), ("Two ", ""), ("folders.", "")]
    chunks = [{"text": said, "thinking": thought, "isError": False} for said, thought in polled]
    usage = {"inputTokens": 9, "outputTokens": 4, "cacheReadTokens": 2, "cacheWriteTokens": 1}
    run = Run(*chunks, done("idle_done", usage=usage))
    assert run.shown == [("thinking", "Let me see.", False), ("text", "Two folders.", False)]
    counted = Usage(input_tokens=9, output_tokens=4, cache_read_input_tokens=2, cache_creation_input_tokens=1)
    assert run.items[-1] == TurnStop(stop_reason="idle_done", usage=counted)
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    named = dict(zip(names, usage.values(), strict=True))
    assert Run(*chunks, done("idle_done", usage=named)).items == run.items
    failed = Run({"text": "quota in /opt/windsurf/ls.log", "thinking": "", "isError": True})
    assert failed.items[0] == AgentError(message="quota in …", seq=0)
    assert failed.told == [("path_redacted", "")]


def test_server_sent_events_end_with_done():
    run = Run(b'data: {"type":"text_delta","text":"Hello."}\n\n', b"data: [DONE]\n\n", b"data: [DONE]\n\n")
    assert run.content == [words_of("Hello.")]
    assert run.items[-1] == TurnStop(stop_reason="stop")


def test_an_answer_without_text_is_still_a_turn():
    assert Run(done("idle_empty")).items == [TurnStop(stop_reason="idle_empty")]


def test_the_identity_is_renamed_to_the_known_model():
    said = text("I am Cascade.")
    assert Run(said, done()).content[0]["text"] == "I am claude-sonnet-4-5."
    start = {"type": "message_start", "id": "m1", "model": "kimi-k2"}
    assert Run(start, said, done(), speech=OutputFilters()).content[0]["text"] == "I am kimi-k2."
    assert Run(start, said, done()).content[0]["text"] == "I am claude-sonnet-4-5."
    nameless = Run(said, done(), speech=OutputFilters())
    assert (nameless.content[0]["text"], nameless.fixes) == ("I am Cascade.", [])


def test_code_and_arguments_keep_their_names():
    arguments = '{"text":"I am Cascade."}'
    run = Run(text(f'```\nI am Cascade.\n```\n<tool_call>{{"name":"say","arguments":{arguments}}}</tool_call>'), done())
    assert run.content[0]["text"] == "```\nI am Cascade.\n```\n"
    assert run.content[1]["input"] == json.loads(arguments)
    assert run.fixes == []


def test_only_paths_are_redacted_in_arguments_at_any_depth():
    arguments = '{"a":[{"path":"/opt/windsurf/bin","n":1.50}],"/opt/windsurf/key":"C:/srv","big":12345678901234567890}'
    run = Run(text(f'<tool_call>{{"name":"ls","arguments":{arguments}}}</tool_call>'), done())
    ((_, given, _),) = run.shown
    assert given == '{"a":[{"path":"…","n":1.50}],"…":"C:/srv","big":12345678901234567890}'
    assert run.told == [("path_redacted", "cascade-block-0")] * 2
    assert [fix.before for fix in run.fixes] == [digest("/opt/windsurf/bin"), digest("/opt/windsurf/key")]
    told = {(fix.after, fix.lossless, fix.target, fix.detail) for fix in run.fixes}
    assert told == {(digest("…"), False, "cascade", "")}


def test_each_change_names_its_item():
    path = '<tool_call>{"name":"ls","arguments":{"path":"/opt/windsurf/x"}}</tool_call>'
    said = text(f"I am Cascade. See /opt/windsurf/z {path}As Cascade I wait")
    run = Run(thinking("I am Cascade, in /opt/windsurf/y."), said, done())
    assert run.told == [
        ("identity_renamed", "cascade-block-0"),
        ("path_redacted", "cascade-block-0"),
        ("path_redacted", "cascade-block-1"),
        ("identity_renamed", "cascade-block-1"),
        ("path_redacted", "cascade-block-2"),
        ("identity_renamed", "cascade-block-3"),
    ]
    assert run.kinds == ["thinking", "text", "tool_use", "text"]


def test_roots_and_marker_are_configurable():
    speech = OutputFilters(roots=("/srv/secret",), marker="∎")
    run = Run(text("/srv/secret/a and /opt/windsurf/b"), done(), speech=speech)
    assert run.content[0]["text"] == "∎ and /opt/windsurf/b"


def test_an_echoed_result_is_removed_and_reported():
    run = Run(text(f"I saw{ECHO} it."), done())
    assert run.content == [words_of("I saw it.")]
    assert run.told == [("tool_text_removed", "cascade-block-0")]
    assert run.fixes[0].before == digest(ECHO)
    assert run.fixes[0].detail == "a tool result that the model repeated"
    alone = Run(text(ECHO), done())
    assert (alone.turns, alone.told) == ([], [("tool_text_removed", "")])


def test_extra_members_of_a_call_are_reported():
    run = Run(text('<tool_call>{"name":"ls","arguments":{},"id":"7"}</tool_call>'), done())
    assert run.content[0]["input"] == {}
    (fix,) = run.fixes
    assert (fix.code, fix.detail) == ("tool_text_removed", "what stood in a call beside its name and arguments")


@pytest.mark.parametrize(
    ("begun", "name", "came"),
    [
        ('<tool_call>{"name":"write","arguments":{"path":"/srv/a', "write", '{"path":"/srv/a'),
        ('<tool_call>\n{"name": "write", "arguments": {"path": "/opt/windsurf/a", "t', "write", '{"path": "…", "t'),
        ('<tool_call>{"name":"write","arguments":{"path":"/srv/a"}}', "write", '{"path":"/srv/a"}}'),
        ('<tool_call>{"name":"write"', "write", ""),
        ('<tool_call>{"name":"write",', "write", ""),
    ],
)
def test_a_cut_call_is_never_completed(begun, name, came):
    for ending in ([], [done()], [{"type": "max_wait"}]):
        run = Run(text(f"Now {begun}"), *ending)
        cut = {"type": "tool_use", "id": "cascade-block-1", "name": name, "input": came, "incomplete": True}
        assert run.content == [words_of("Now "), cut]
        assert run.shown[1] == ("tool_use", came, True)


def test_a_call_without_a_complete_name_stays_text():
    for begun in ("<tool_call>", '<tool_call>{"na', '<tool_call>{"name":"wri', '{"name":"write","arguments":{"a"'):
        assert Run(text(f"Now {begun}"), done()).content == [words_of(f"Now {begun}")]


def test_an_overlong_call_is_text():
    long = '<tool_call>{"name":"write","arguments":{"text":"' + "a" * 70_000 + '"}}</tool_call>'
    pieces = [text(long[at : at + 5_000]) for at in range(0, len(long), 5_000)]
    run = Run(*pieces, text("Done."), done())
    assert run.content == [words_of(f"{long}Done.")]


@pytest.mark.parametrize(
    "words",
    [
        f"The tag `{CALL}` calls.",
        f'<tool_result tool_call_id="c1">{CALL}</tool_result>Done.',
        f'<tool_{ECHO}call>{{"name":"rm","arguments":{{}}}}</tool_call>',
        '{"example": {"name":"rm","arguments":{}}}',
    ],
)
def test_quoted_calls_never_become_calls(words):
    for step in (1, 3, len(words)):
        pieces = [text(words[at : at + step]) for at in range(0, len(words), step)]
        run = Run(*pieces, done(), speech=OutputFilters(tools=("ls",)))
        assert "tool_use" not in run.kinds


def test_reasoning_makes_no_calls():
    run = Run(thinking(f"I could {CALL}"), text("No."), done())
    assert run.shown == [("thinking", f"I could {CALL}", False), ("text", "No.", False)]


def test_a_bare_call_must_name_a_tool_if_tools_are_known():
    bare = '{"name":"ls","arguments":{}}'
    assert Run(text(bare), done()).shown == [("tool_use", "{}", False)]
    told = OutputFilters(tools=("read",))
    assert Run(text(bare), done(), speech=told).shown == [("text", bare, False)]
    assert Run(text(CALL), done(), speech=told).shown[0][0] == "tool_use"


def test_reasoning_between_texts_keeps_its_place():
    run = Run(thinking("One."), text("A <tool_"), thinking("Two."), text('call>{"name":"ls"}</tool_call>'), done())
    assert run.shown == [
        ("thinking", "One.", False),
        ("text", "A ", False),
        ("thinking", "Two.", False),
        ("tool_use", "{}", False),
    ]


def test_another_attempt_replaces_the_first_one():
    start = {"type": "message_start", "id": "m1"}
    run = Run(start, text(f"First {CALL} <tool_call>{{"), start | {"id": "m2"}, text("Second."), done())
    assert run.content == [words_of("Second.")]
    assert [item.item_id for item in only(run.items, ItemRetracted)] == [f"cascade-block-{at}" for at in range(3)]


def test_an_error_cuts_the_attempt():
    run = Run(text("Half"), {"type": "error", "message": "gone: /root/WindsurfAPI/x", "code": "unavailable"})
    assert errors(run.items) == [("gone: …", "unavailable")]
    assert run.shown == [("text", "Half", True)]
    assert isinstance(run.items[-1], TurnDiagnosis)
    assert (run.items[-1].cause, run.items[-1].error) == ("error", "unavailable")


@pytest.mark.parametrize("ending", [{"type": "max_wait"}, done("max_wait"), None])
def test_a_planner_timeout_leaves_head_and_tail(ending):
    words = "".join(f"{number} /opt/windsurf/bin " for number in range(500))
    events = [text(words[at : at + 97]) for at in range(0, len(words), 97)]
    recovery = Recovery("cascade")
    items = [item for event in events for item in recovery.feed(json.dumps(event).encode())]
    items += recovery.feed(json.dumps(ending).encode()) if ending else []
    items += recovery.end_run("exit 1" if ending else "max_wait")
    (diagnosis,) = only(items, TurnDiagnosis)
    shown = words.replace("/opt/windsurf/bin", "…")
    assert (diagnosis.reason, diagnosis.cause) == ("max_wait", "time_limit")
    assert (diagnosis.head, diagnosis.tail) == (shown[:400], shown[-400:])
    assert diagnosis.length == len(shown)


def test_the_reason_of_a_planner_timeout_has_no_paths():
    run = Run(text("Hm"), {"type": "max_wait", "message": "180 s in /opt/windsurf/bin"})
    assert isinstance(run.items[-1], TurnDiagnosis)
    assert run.items[-1].reason == "max_wait: 180 s in …"
    assert run.told == [("path_redacted", "")]
    stalled = Run(text("Hm"), done("stall_warm"))
    assert isinstance(stalled.items[-1], TurnDiagnosis)
    assert stalled.items[-1].cause == "stall"


def test_unknown_events_are_passed_on_without_paths():
    run = Run(
        {"type": "step", "log": "/opt/windsurf/log"},
        b"not JSON in /opt/windsurf/log",
        {"text": "Hello.", "cascadeId": "7"},
        {"type": "text_delta", "text": 5},
        done(),
    )
    found = only(run.items, AgentUnrecognized)
    assert [(item.text, bytes(item.event) if item.event else b"") for item in found] == [
        ("", '{"type":"step","log":"…"}'.encode()),
        ("not JSON in …", b""),
        ("", b'{"cascadeId":"7"}'),
        ("", b'{"type":"text_delta","text":5}'),
    ]
    assert run.content == [words_of("Hello.")]
    assert run.told == [("path_redacted", "")] * 2


def test_recover_reads_the_source():
    items = list(recover([json.dumps(text(f"Looking. {CALL}")), json.dumps(done())], source="cascade"))
    assert [entry.item_type for entry in entries(items)] == ["text", "tool_use"]


PIECES = st.sampled_from(
    [
        "word ", "\n\n", " ", "```\n", "`", "/opt/windsurf", "/opt/windsurf/bin, ", "/root/WindsurfAPI/a.py:3. ",
        "I am Cascade", "I am Cascade, made by Windsurf. ", "the Cascade workspace ", "<tool_call>", "</tool_call>",
        CALL, ECHO, "<tool_result ", '{"name":"ls","arguments":{"p":"/opt/windsurf/x"}}', '{"name"', '"', "{", "}", "<",
        '{"tool_code":"ls()"}', "…", "é", "\U0001f600",
    ]
)  # fmt: skip

ROOT = re.compile(r"(?<![\w.~/\\])/(?:opt/windsurf|root/WindsurfAPI)/", re.ASCII)


@st.composite
def stretches(draw):
    """Parts of text and reasoning, alternating, each cut into pieces anywhere."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        words = "".join(draw(st.lists(PIECES, min_size=1, max_size=10)))
        cuts = sorted({0, len(words), *draw(st.lists(st.integers(0, len(words)), max_size=8))})
        found.append((thinking if number % 2 else text, [words[begin:end] for begin, end in pairwise(cuts)]))
    return found


@settings(max_examples=200, deadline=None)
@given(stretches(), st.frozensets(st.integers(0, 30)), st.sampled_from([[], [done()], [{"type": "max_wait"}]]))
def test_any_split_and_any_restart_gives_the_same_result(said, restarts, ending):
    pieces = [event(piece) for event, cut in said for piece in cut]
    whole = Run(*[event("".join(cut)) for event, cut in said], *ending)
    split = Run(*pieces, *ending, restarts=restarts)
    assert split.turns == whole.turns
    assert split.shown == whole.shown
    assert Counter(split.fixes) == Counter(whole.fixes)
    again = Run(*pieces, *ending)
    assert (again.items, again.fixes) == (split.items, split.fixes)


@settings(max_examples=100, deadline=None)
@given(st.lists(PIECES, min_size=1, max_size=14).map("".join))
def test_every_removed_text_is_reported(words):
    run = Run(text(words), done())
    if not run.fixes and "tool_use" not in run.kinds:
        assert "".join(shown for _, shown, _ in run.shown) == ("" if words.isspace() else words)
    for _, shown, _ in run.shown:
        assert not ROOT.search(shown)
