"""What `normalize`, `validate` and `recover` print for people."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from reknit import pipeline
from reknit.pipeline.changes import changes_of, content_at
from reknit.pipeline.fixes import FIXES, Fix

CALL = {"type": "tool_use", "id": "call.1", "name": "ls", "input": {}}
BROKEN = [
    {"role": "user", "content": "Read a.py"},
    {"role": "assistant", "content": [{"type": "text", "text": ""}, {"type": "text", "text": "I look."}, CALL]},
    {"role": "user", "content": "and now?"},
]
ADDED = "No result was recorded for this tool call: it was interrupted, or its result was lost."
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def reknit(*arguments, given, **env):
    command = [sys.executable, "-m", "reknit", *arguments]
    given = given if isinstance(given, bytes) else json.dumps(given).encode()
    return subprocess.run(
        command, input=given, capture_output=True, check=False, timeout=120, env={**os.environ, **env}
    )


def on_a_terminal(*arguments, given, **env):
    """Return the bytes that a command writes to a terminal, which is its stdout and stderr."""
    reader, writer = pty.openpty()
    command = [sys.executable, "-m", "reknit", *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=writer, stderr=writer, env={**os.environ, **env}
    ) as process:
        os.close(writer)
        process.stdin.write(json.dumps(given).encode())
        process.stdin.close()
        written = b""
        while True:
            try:
                piece = os.read(reader, 65536)
            except OSError:  # the terminal has no other end any more
                break
            if not piece:
                break
            written += piece
    os.close(reader)
    return written


def change(text, code, loss):
    return f'{text} ({code}, {loss}; avoids "{FIXES[code].error}")'


def test_each_fix_is_a_line_with_place_contents_loss_and_avoided_error():
    done = reknit("normalize", "--to", "openai-chat", given=BROKEN)
    assert done.returncode == 3
    warnings, changes = [], []
    for line in done.stderr.decode().splitlines():
        (warnings if line.startswith("soft: ") else changes).append(line)
    call = '{"type": "tool_use", "id": "ca…", "name": "ls", "input": {}}'
    written = '{"type": "function", "id": "ca…e": "ls", "arguments": "{}"}}'
    assert changes == [
        "messages.1.content.0: " + change('left out: {"type": "text", "text": ""}', "blank_dropped", "nothing lost"),
        "messages.1.content.2: " + change(f"{call} -> {written}", "id_rewritten", "nothing lost"),
        "messages.2.content.0: "
        + change(f'added "[{ADDED[:28]}…{ADDED[-27:]}]"', "result_synthesised", "content added"),
        "3 repairs: 1 added content, 2 lost nothing; reknit explain CODE explains a repair or a rule",
    ]


def test_lines_name_their_document_and_the_total_comes_once():
    given = b"\n".join([json.dumps(BROKEN).encode(), b"{", json.dumps(BROKEN).encode()])
    single = reknit("normalize", given=BROKEN).stderr.decode().splitlines()[:-1]
    found = reknit("normalize", "--lines", given=given).stderr.decode().splitlines()
    assert [line for line in found if line.startswith("1: ")] == [f"1: {line}" for line in single]
    assert [line for line in found if line.startswith("3: ")] == [f"3: {line}" for line in single]
    assert [line[:11] for line in found if line.startswith("2: ")] == ["2: reknit: "]
    assert [line for line in found if "reknit explain" in line] == [found[-1]]
    assert found[-1].startswith("6 repairs: ")


def test_a_place_is_not_repeated():
    call = CALL | {"name": "list files"}
    done = reknit("normalize", given=[BROKEN[0], {"role": "assistant", "content": [call]}])
    (first, second) = [line for line in done.stderr.decode().splitlines() if "_rewritten" in line]
    place = "messages.1.content.0: "
    assert first.startswith(f'{place}id "call.1" -> "call_1-067ef8600172", name "list files" -> "list_files-')
    assert second.startswith(" " * len(place) + "a tool name that the target refuses was rewritten")


def test_quiet_leaves_out_the_words_and_keeps_output_and_exit_code():
    words, quiet = (reknit("normalize", *options, given=BROKEN) for options in ((), ("-q",)))
    assert words.stderr
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (3, words.stdout, b"")
    body = {"messages": BROKEN}
    assert reknit("validate", "-q", given=body).returncode == reknit("validate", given=body).returncode == 4
    assert reknit("validate", "-q", given=body).stdout == b""


def test_json_is_the_report():
    assert reknit("normalize", "--json", given=BROKEN).stdout == reknit("normalize", "--report", given=BROKEN).stdout


def test_the_difference_of_history_and_request():
    done = reknit("normalize", "--diff", "-q", given=BROKEN)
    called = "call_1-067ef8600172"
    result = {"type": "tool_result", "tool_use_id": called, "content": f"[{ADDED}]", "is_error": True}
    assert done.returncode == 3
    assert done.stdout.decode().splitlines() == [
        "  user:",
        '    "Read a.py"',
        "  assistant:",
        '-   {"type": "text", "text": ""}',
        '    {"type": "text", "text": "I look."}',
        '-   {"type": "tool_use", "id": "call.1", "name": "ls", "input": {}}',
        f'+   {{"type": "tool_use", "id": "{called}", "name": "ls", "input": {{}}}}',
        "  user:",
        '-   "and now?"',
        f"+   {json.dumps(result)}",
        '+   {"type": "text", "text": "and now?"}',
    ]


@pytest.mark.parametrize("options", [("--report",), ("--lines",)])
def test_the_difference_excludes_other_forms(options):
    done = reknit("normalize", "--diff", *options, given=BROKEN)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--diff excludes" in done.stderr


def test_the_difference_of_a_transcript_and_of_a_text():
    line = {"type": "user", "uuid": "u1", "parentUuid": None, "sessionId": "s", "message": BROKEN[0]}
    done = reknit("normalize", "--diff", "-q", given=json.dumps(line).encode() + b'\n{"type":"progress"}\n')
    assert done.returncode == 0
    assert '+   "Read a.py"' in done.stdout.decode().splitlines()
    text = reknit("normalize", "--to", "claude-cli", "--diff", "-q", given=BROKEN[:1])
    written = json.dumps({"type": "user", "message": BROKEN[0]})
    assert text.stdout.decode().splitlines() == ["- user:", '-   "Read a.py"', f"+   {written}"]


def test_colours_are_for_terminals_that_want_them():
    assert b"\x1b[33m" in on_a_terminal("normalize", given=BROKEN, NO_COLOR="")
    assert b"\x1b" not in on_a_terminal("normalize", given=BROKEN, NO_COLOR="1")
    assert b"\x1b" not in reknit("normalize", given=BROKEN, NO_COLOR="").stderr


def test_violations_are_lines_of_text_on_a_terminal_and_json_elsewhere():
    body = {"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": []}
    words = on_a_terminal("validate", given=body, NO_COLOR="1").decode().split("\r\n")
    (found,) = map(json.loads, reknit("validate", given=body).stdout.splitlines())
    assert words[-2:] == [f"hard: messages: {found['message']} [{found['rule']}]", ""]
    assert b'{"rule"' in on_a_terminal("validate", "--json", given=body, NO_COLOR="1")


def test_recover_prints_a_line_for_each_fix():
    given = (EXAMPLES / "text.jsonl").read_bytes()
    done, quiet = (reknit("recover", "--from", "cascade", *more, given=given) for more in ((), ("-q",)))
    summary = FIXES["path_redacted"].summary
    assert done.stderr.decode().splitlines() == [
        f"cascade-block-0: {summary} (path_redacted, content lost)",
        "1 repair: 1 lost content; reknit explain CODE explains a repair or a rule",
    ]
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (3, done.stdout, b"")


@pytest.mark.parametrize("byte", ["\x1b[2J", "\x9b", "\u202e", "\x07"])
def test_content_does_not_act_on_a_terminal(byte):
    history = [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": f"odd{byte}", "x": byte}]}]
    done = reknit("normalize", given=history)
    assert done.returncode == 3
    for character in byte:
        assert (character.isascii() and character.isprintable()) or character.encode() not in done.stderr


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("messages.0.content", "hi"),
        ("messages.0.content.0", "hi"),
        ("messages.0.content.1", None),
        ("messages.1", None),
        ("messages.x", None),
        ("", None),
    ],
)
def test_a_value_is_found_by_its_path(path, value):
    found = content_at({"messages": [{"role": "user", "content": "hi"}]}, path)
    assert found == value if value else not isinstance(found, (str, dict, list))


def test_every_code_has_words_without_any_content():
    for code in FIXES:
        fix = Fix(code=code, path="messages.7.content.7", lossless=FIXES[code].lossless, detail="why")
        (change,) = changes_of([fix], [], b"no JSON", None)
        assert change.text == f"{FIXES[code].summary}: why"
        assert f"({code}, " in change.line


def test_a_rejected_history_has_its_changes_too():
    done = pipeline.normalize(BROKEN, policy={"tail": "keep"})
    assert [change.code for change in changes_of(done.fixes, done.ledger, json.dumps(BROKEN).encode(), done.body)] == [
        fix.code for fix in done.fixes
    ]
