"""The commands normalize, validate and recover: outputs, exit codes and messages."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import cramjam
import pytest
from build import said, user
from claude_lines import RETRY, result, start, stop, text, whole

HEALTHY = {"model": "claude-sonnet-4-5", "max_tokens": 64, "messages": [user("hi")]}
# Its model does not accept an answer to continue.
BROKEN = HEALTHY | {"model": "claude-opus-4-6", "messages": [user("hi"), said("a")]}
ROOT = Path(__file__).parents[2]


def reknit(*arguments, given=b""):
    if not isinstance(given, bytes):
        given = given.encode() if isinstance(given, str) else json.dumps(given).encode()
    command = [sys.executable, "-m", "reknit", *arguments]
    return subprocess.run(command, input=given, capture_output=True, check=False, timeout=120)


def lines(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_packed_history_is_unpacked():
    packed = bytes(cramjam.zstd.compress(json.dumps(HEALTHY).encode()))
    assert reknit("normalize", given=packed).stdout == reknit("normalize", given=HEALTHY).stdout


def test_a_valid_history_is_clean_and_silent():
    done = reknit("normalize", given=HEALTHY)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout) == HEALTHY


def test_a_repaired_history_ends_with_3_and_lists_the_repairs():
    done = reknit("normalize", given=BROKEN)
    assert done.returncode == 3
    assert b"tail_continued" in done.stderr
    assert json.loads(done.stdout)["messages"][-1]["role"] == "user"


def test_a_rejected_history_ends_with_4_and_the_providers_words():
    done = reknit("normalize", "--policy", "tail=reject", given=BROKEN)
    assert (done.returncode, done.stdout) == (4, b"")
    assert b"must end with a user message" in done.stderr


@pytest.mark.parametrize("target", ["claude-cli", "copilot-cli", "cascade"])
def test_nothing_to_send_is_zero_bytes_and_ends_with_4(target):
    done = reknit("normalize", "--to", target, given=b'{"system": "be brief", "messages": []}')
    assert (done.returncode, done.stdout) == (4, b"")
    assert done.stderr.startswith((b"hard:", b"soft:"))
    report = reknit("normalize", "--to", target, "--report", given=b"[]")
    assert report.returncode == 4
    assert json.loads(report.stdout)["request"] is None


def test_a_report_is_one_object_and_leaves_stderr_empty():
    done = reknit("normalize", "--report", "--policy", "tail=reject", given=BROKEN)
    report = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (4, b"")
    assert report["request"] is None
    assert [violation["severity"] for violation in report["violations"]] == ["hard"]


@pytest.mark.parametrize("given", [HEALTHY, HEALTHY["messages"]], ids=["in place of the document's", "of a bare list"])
def test_the_model_option_is_the_model_of_the_request(given):
    done = reknit("normalize", "--model", "claude-haiku-4-5", given=given)
    assert json.loads(done.stdout)["model"] == "claude-haiku-4-5"


def test_the_request_of_a_text_target_is_plain_text():
    done = reknit("normalize", "--to", "claude-cli", "--report", given=HEALTHY)
    request = json.loads(done.stdout)["request"]
    assert request == '{"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "hi"}]}}\n'
    plain = reknit("normalize", "--to", "claude-cli", given=HEALTHY)
    assert plain.stdout.decode() == request


def test_lines_give_a_line_each_and_the_worst_exit_code():
    documents = [json.dumps(HEALTHY), json.dumps(BROKEN), "nonsense"]
    done = reknit("normalize", "--lines", "--report", given="\n".join(documents))
    assert done.returncode == 2
    first, second, third = lines(done)
    assert (first["fixes"], [fix["code"] for fix in second["fixes"]]) == ([], ["tail_continued"])
    assert third["request"] is None
    assert third["error"]["code"] == "not_json"
    plain = reknit("normalize", "--lines", given="\n".join(documents[:2]))
    assert plain.returncode == 3
    assert len(lines(plain)) == 2


def test_input_can_be_a_file(tmp_path):
    file = tmp_path / "history.json"
    file.write_text(json.dumps(HEALTHY))
    assert reknit("normalize", str(file)).stdout == reknit("normalize", given=HEALTHY).stdout


UNUSABLE = [
    pytest.param(b"", id="empty"),
    pytest.param(b"not json", id="not JSON"),
    pytest.param(b"null", id="null"),
    pytest.param(b"17", id="a number"),
    pytest.param(b'{"messages": 3}', id="messages are a number"),
    pytest.param(b'[{"role": 7, "content": "x"}]', id="role is a number"),
    pytest.param(b'[{"role": "wizard", "content": "x"}]', id="unknown role"),
    pytest.param(b"[" * 100_000, id="deep"),
    pytest.param(b'[{"role":"user","content":' + b"[" * 1000 + b"]" * 1000 + b"}]", id="depth 1,000"),
    pytest.param(b"\x80\x81\xfe", id="binary"),
]


@pytest.mark.parametrize("given", UNUSABLE)
def test_unusable_input_ends_with_2_and_one_sentence(given):
    done = reknit("normalize", given=given)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"reknit: ")
    assert b"Traceback" not in done.stderr


def test_lone_surrogates_and_unknown_blocks_are_repaired_not_rejected():
    given = b'[{"role":"user","content":[{"type":"text","text":"a\\ud800b"},{"type":"hologram","x":1}]}]'
    done = reknit("normalize", "--report", given=given)
    assert done.returncode == 3
    codes = {fix["code"] for fix in json.loads(done.stdout)["fixes"]}
    assert "surrogate_replaced" in codes
    assert len(codes) == 2


def test_validate_prints_one_violation_a_line_in_the_providers_words():
    body = HEALTHY | {"messages": [{"role": "user", "content": []}]}
    done = reknit("validate", given=body)
    assert done.returncode == 4
    assert {"rule", "path", "message", "severity"} == set(lines(done)[0])
    clean = reknit("validate", given=HEALTHY)
    assert (clean.returncode, clean.stdout) == (0, b"")
    numbered = reknit("validate", "--lines", given=f"{json.dumps(HEALTHY)}\n{json.dumps(body)}")
    assert {line["line"] for line in lines(numbered)} == {2}


def test_validate_takes_the_betas_of_a_body():
    block = {"type": "document", "source": {"type": "file", "file_id": "f1"}}
    body = HEALTHY | {"messages": [{"role": "user", "content": [block]}]}
    found = [
        [(line["rule"], line["severity"]) for line in lines(reknit("validate", *options, given=body))]
        for options in ((), ("--beta", "fast-1"), ("--beta", "context-1m-2025-08-07,files-api-2025-04-14"))
    ]
    assert found == [[("ANT-31c", "soft")], [("ANT-31d", "hard")], []]


def test_validate_takes_a_prompt_as_plain_text():
    done = reknit("validate", "--target", "copilot-cli", given=b"Read the README.")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert reknit("validate", "--target", "copilot-cli", given=b" ").returncode == 4


def test_validate_reports_a_body_that_is_not_a_json_object():
    done = reknit("validate", given=b"{")
    assert done.returncode == 2
    assert b"not a JSON object" in done.stderr


STREAM = [RETRY, whole("m1", {"type": "text", "text": "Hi."}), result("Hi.")]


def test_recover_prints_one_item_a_line_and_ends_with_3_after_a_promotion():
    done = reknit("recover", given="\n".join(map(json.dumps, STREAM)))
    found = lines(done)
    assert done.returncode == 3
    started = [item for item in found if item["type"] == "item/started"]
    assert [(item["origin"], item["text"]) for item in started] == [("promoted", "Hi.")]
    assert found[-1]["type"] == "turn/result"


def test_recover_reconciles_a_run_with_its_transcript(tmp_path):
    runs = ROOT / "tests" / "vectors" / "gemini_cli_runs.jsonl"
    [run] = [row for row in map(json.loads, runs.read_text("utf-8").splitlines()) if row["name"] == "rst-text-0.61.0"]
    kept = tmp_path / "session.jsonl"
    kept.write_text(run["transcript"], "utf-8")
    done = reknit("recover", "--from", "gemini-cli", "--transcript", str(kept), given="\n".join(run["lines"]))
    assert done.returncode == 3
    assert [item["reason"] for item in lines(done) if item["type"] == "item/retracted"] == ["transcript"]
    other = reknit("recover", "--from", "codex-cli", "--transcript", str(kept))
    assert (other.returncode, b"of codex-cli no transcript is read" in other.stderr) == (2, True)


def test_recover_reports_unknown_events_and_names_the_likely_source():
    cli = b"".join(json.dumps(line).encode() + b"\n" for line in (start("m1"), *text("Hel"), stop()))
    error = b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'
    done = reknit("recover", "--from", "anthropic", given=cli + error + b"\n")
    assert done.returncode == 3
    assert done.stderr == (
        b"reknit: 4 events are not events of anthropic and became agent/unrecognized; "
        b"the input looks like claude-cli: --from claude-cli\n"
    )
    assert Counter(item["type"] for item in lines(done))["agent/unrecognized"] == 4


@pytest.mark.parametrize("command", ["normalize", "validate", "recover"])
def test_closed_standard_input_and_output_are_reported_in_a_sentence(command):
    messages = {"<&-": "standard input: Bad file descriptor", ">&-": "standard output is closed; redirect"}
    for closed, message in messages.items():
        done = subprocess.run(
            ["sh", "-c", f'echo "[]" | "$0" -m reknit {command} {closed}', sys.executable],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stderr.startswith(f"reknit: {message}"), done.stderr.count("\n")) == (2, True, 1)


def test_recover_turns_noise_into_items():
    done = reknit("recover", given=b"\xff\xfe\x00\nnull\nnot json\n" + b"x" * 10_000_000)
    assert done.returncode == 2
    assert done.stderr == b"reknit: nothing here reads as events of claude-cli; --from names another source\n"
    assert [item["type"] for item in lines(done)] == ["agent/unrecognized"] * 4


# As a terminal starts it. If the tests themselves run in the background, SIGINT is ignored, and that is inherited.
IN_A_TERMINAL = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from reknit.__main__ import main
main()
"""


def test_ctrl_c_ends_an_open_pipe_and_leaves_the_open_item_incomplete():
    command = [sys.executable, "-c", IN_A_TERMINAL, "recover"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        for line in (start("m1"), *text("Hel")):
            process.stdin.write(json.dumps(line).encode() + b"\n")
        process.stdin.flush()
        assert [json.loads(process.stdout.readline())["type"] for _ in range(2)] == ["item/started", "item/delta"]
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        items = [json.loads(line) for line in process.stdout]
        assert (process.returncode, process.stderr.read()) == (3, b"")
    assert items[0] == {"type": "item/completed", "item_id": "cc-block-0", "incomplete": True, "reason": "interrupted"}
    assert [item["type"] for item in items[1:]] == ["turn/stop", "turn/diagnosis"]
    assert (items[2]["cause"], items[2]["head"]) == ("stopped", "Hel")


@pytest.mark.parametrize(
    ("given", "code"),
    [(b"", 0), (b"\n \n", 0), (b'{"type":"keep_alive"}\n', 0), (b"null\n", 2), (b'null\n{"type":"system"}\n', 3)],
)
def test_recover_ends_with_2_if_no_event_was_recognised_and_with_3_otherwise(given, code):
    assert reknit("recover", given=given).returncode == code


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("normalise",), "no such command: expected one of config, convert, dead-letters, demo, "),
        (("normalise",), "got 'normalise'; did you mean normalize?"),
        (("topics", "aply"), "compat, diff, list, rebuild, schemas, got 'aply'; did you mean apply?"),
        (("ingest", "event"), "expected one of events, requests, turns, got 'event'; did you mean events?"),
        (("normalize", "--to", "antropic"), "got 'antropic'; did you mean anthropic?"),
        (("normalize", "--from", "open-ai"), "expected one of acp, adk-events, "),
        (("validate", "--target", "openai"), "got 'openai'; did you mean openai-chat?"),
        (("recover", "--from", "claude"), "got 'claude'; did you mean claude-cli?"),
        (("ingest", "events", "--session", "s", "--source", "gemin"), "got 'gemin'; did you mean gemini?"),
        (("send", "--exec", "cat", "--target", "vlm"), "got 'vlm'; did you mean vllm?"),
        (
            ("normalize", "--policy", "tial=keep"),
            "policy: expected one of cut_text, endpoints, expires_after, fit, heal, incomplete_call, ",
        ),
        (("normalize", "--policy", "tial=keep"), "got 'tial'; did you mean tail?"),
        (("normalize", "--policy", "tail=kep"), "policy.tail: expected one of auto, continue, keep, prefill, "),
        (("explain", "result_move"), "did you mean result_moved"),
        (("normalize", "--to", "nobody"), "openai-responses, vllm, got 'nobody'"),
        (("normalize", "--from", "nobody"), "pydantic-ai, semantic-kernel, got 'nobody'"),
        (("normalize", "--policy", "tail"), "--policy takes NAME=VALUE, not 'tail'"),
        (("normalize", "--policy", "tail=sometimes"), "policy.tail: expected one of auto, continue, keep, prefill, "),
        (("validate", "--target", "nobody"), "openai-responses, vllm, got 'nobody'"),
        (("recover", "--from", "nobody"), "openai-responses, vllm, got 'nobody'"),
        (("normalize", "/does/not/exist"), "'/does/not/exist' does not exist"),
        (("explain", "nobody_knows"), "no fix and no rule is called 'nobody_knows'; `reknit explain` lists all"),
        (("inspect", "--since", "yesterday", "s"), "'yesterday' is neither so long ago (90s, 30m, 2h, 7d) nor a time"),
    ],
)
def test_unusable_arguments_are_answered_with_the_available_values(arguments, told):
    done = reknit(*arguments, given=HEALTHY)
    assert (done.returncode, done.stdout) == (2, b"")
    assert told in done.stderr.decode()
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("normalize",), ["copilot-cli, deepseek", "[default: anthropic]", "tail=auto or continue or", "claude-code"]),
        (("validate",), ["openai-responses, vllm"]),
        (("recover",), ["bedrock-converse, cascade, claude-cli"]),
        (("ingest", "events"), ["[events|bytes]", "[env: REKNIT_WAIT_SECONDS; default: 0]", "gemini"]),
        (("topics", "apply"), ["[env: REKNIT_PARTITIONS; default: 12]", "REKNIT_REPLICATION_FACTOR"]),
        (("worker",), ["[exactly-once|at-least-once]", "METRICS_PORT; default: 9464]", "localhost:9092]"]),
        (("inspect",), ["[env: REKNIT_CONFIG]", "[env: REKNIT_PREFIX; default: empty]", "--since"]),
        (("send",), ["--wait SECONDS", "copilot-cli, deepseek"]),
    ],
)
def test_help_lists_choices_variables_and_defaults(arguments, shown):
    done = reknit(*arguments, "--help")
    words = " ".join(done.stdout.decode().split()).replace("- ", "-")
    assert done.returncode == 0
    assert [text for text in shown if text not in words] == []


@pytest.mark.parametrize(
    ("policies", "code", "said", "roles"),
    [
        ((), 3, "1 repair: 1 lost content; ", ["user"]),
        (("mend.leading_dropped=observe",), 0, "(leading_dropped, not made, by policy; avoids ", ["assistant", "user"]),
        (
            ("mend.anthropic.leading-dropped=observe",),
            0,
            "(leading_dropped, not made, by policy; avoids ",
            ["assistant", "user"],
        ),
        (("mend.leading_dropped=observe", "mend.anthropic.leading_dropped=on"), 3, "1 lost content", ["user"]),
        (("mend.openai-chat.leading_dropped=observe",), 3, "1 lost content", ["user"]),
    ],
)
def test_a_repair_can_be_observed_before_it_is_enabled(policies, code, said, roles):
    given = {"messages": [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "q"}]}
    options = [part for policy in policies for part in ("--policy", policy)]
    done = reknit("normalize", *options, given=given)
    assert done.returncode == code
    assert said in done.stderr.decode()
    assert [message["role"] for message in json.loads(done.stdout)["messages"]] == roles
    (report,) = lines(reknit("normalize", "--report", *options, given=given))
    assert [(fix["code"], fix.get("observed", False)) for fix in report["fixes"]] == [("leading_dropped", code == 0)]


FULL = "/dev/full"
# Members that Anthropic requires in addition to the messages.
HEAD = {"model": "ANT-37", "max_tokens": "ANT-37b"}


@pytest.mark.skipif(not Path(FULL).exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize(
    "arguments", [("normalize",), ("--help",), ("explain",), ("topics", "list"), ("topics", "acls")]
)
def test_a_full_disk_is_reported_in_a_sentence(arguments):
    with Path(FULL).open("wb") as full:
        command = [sys.executable, "-m", "reknit", *arguments]
        done = subprocess.run(
            command, input=json.dumps(HEALTHY).encode(), stdout=full, stderr=subprocess.PIPE, check=False, timeout=120
        )
    assert (done.returncode, done.stderr) == (2, b"reknit: the output: No space left on device\n")


@pytest.mark.parametrize("arguments", [("explain",), ("topics", "schemas"), ("topics", "asyncapi")])
def test_an_unwritable_place_is_reported_in_a_sentence(arguments, tmp_path):
    (tmp_path / "file").write_text("")
    done = reknit(*arguments, "--write", str(tmp_path / "file" / "docs"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"reknit: {tmp_path}/file/docs")
    assert done.stderr.endswith(b": Not a directory\n")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("anthropic", [f"soft: {key}: {key}: Field required [{rule}]" for key, rule in HEAD.items()]),
        ("openai-chat", ["soft: model: you must provide a model parameter [OAI-17]"]),
        ("gemini", ["soft: model: model is not specified [GEM-22]"]),
        ("claude-cli", []),
    ],
)
def test_missing_members_that_the_target_requires_are_warned_of(target, said):
    done = reknit("normalize", "--to", target, given=[{"role": "user", "content": "hi"}])
    assert (done.returncode, done.stderr.decode().splitlines()) == (0, said)


def test_normalize_names_the_line_of_a_transcript_that_cannot_be_read():
    first = {"type": "user", "uuid": "u1", "parentUuid": None, "sessionId": "s", "message": user("hi")}
    whole_file = json.dumps(first) + '\n{"type":"progress","sessionId":"s"}\n'
    damaged = reknit("normalize", given=whole_file + '{"type":"assis')
    assert damaged.returncode == 3
    assert "lines.2: " in damaged.stderr.decode()
    assert "could not be read and was left out: line 3, 14 bytes (line_unreadable, " in damaged.stderr.decode()
    cut = reknit("normalize", given=whole_file + json.dumps(first | {"uuid": "u2", "parentUuid": "u1"})[:-4])
    assert cut.returncode == 3
    assert ": line 3, " in cut.stderr.decode()
    assert " (line_cut, " in cut.stderr.decode()
    skipped = reknit("normalize", given=whole_file + '{"type":"aside","content":"more"}\n')
    assert (skipped.returncode, skipped.stdout) == (3, damaged.stdout)
    assert ": line 3, unknown type 'aside', 33 bytes (line_skipped, content lost)\n" in skipped.stderr.decode()
    sound = reknit("normalize", given=whole_file)
    assert (sound.returncode, sound.stdout) == (0, damaged.stdout)
    assert "lines." not in sound.stderr.decode()
