"""`repair_transcript`: eight kinds of damage to the session files of three programs, and files without damage."""

import gzip
import json
import os
from pathlib import Path

import pytest
import session_files
from hypothesis import given
from hypothesis import strategies as st
from session_files import FOREIGN, ROLLOUT, encoded, png, uuid

from reknit.pipeline import normalize
from reknit.pipeline.errors import InputError
from reknit.pipeline.history.placeholders import INTERRUPTED
from reknit.pipeline.transcripts import repair_transcript

PROGRAMS = {
    "Claude Code": (session_files.claude_code, f"{session_files.SESSION}.jsonl", "anthropic"),
    "Codex": (session_files.codex, ROLLOUT, "openai-responses"),
    "Gemini CLI": (session_files.gemini_chat, "session-2026-11-27T10-00-0f1e2d3c.jsonl", "gemini"),
}
CORPUS = Path(os.environ.get("REKNIT_CORPUS", "../shared/corpus"))


def index_of(lines, text):
    """The place of the first line that has a text."""
    return next(at for at, line in enumerate(lines) if text in json.dumps(line))


def parent(lines, at, value):
    if "parentUuid" in lines[at]:
        lines[at]["parentUuid"] = value


# Each takes a program's name and its lines, and returns the damaged file and the codes of its repair.


def lost_result(program, lines):
    at = index_of(lines, '"r1"')
    if program == "Gemini CLI":
        del lines[at]["toolCalls"][0]["result"]
        del lines[at + 2]
        return encoded(*lines), ["result_synthesised"]
    if program == "Claude Code":
        parent(lines, at + 1, uuid(1))
    del lines[at]
    return encoded(*lines), ["result_synthesised"]


def doubled_result(program, lines):
    at = max(at for at, line in enumerate(lines) if '"r1"' in json.dumps(line))
    double = json.loads(json.dumps(lines[at]))
    if program == "Claude Code":
        double |= {"uuid": uuid(90), "parentUuid": uuid(2)}
        parent(lines, at + 1, uuid(90))
    elif program == "Gemini CLI":
        double["id"] = uuid(90)
    lines.insert(at + 1, double)
    return encoded(*lines), ["result_repeated"]


def orphan_result(program, lines):
    at = max(at for at, line in enumerate(lines) if '"r1"' in json.dumps(line))
    text = json.dumps(lines[at])
    orphan = json.loads(text.replace("toolu_1", "toolu_9").replace("call_1", "call_9").replace("ls__1", "ls__9"))
    if program == "Claude Code":
        orphan |= {"uuid": uuid(90), "parentUuid": uuid(2)}
        parent(lines, at + 1, uuid(90))
    elif program == "Gemini CLI":
        orphan["id"] = uuid(90)
    lines.insert(at + 1, orphan)
    return encoded(*lines), ["result_orphan"]


def cut_line(_program, lines):
    data = encoded(*lines)
    return data[: data.rindex(b"And now?") + 3], ["line_cut"]


def corrupt_middle_line(_program, lines):
    data = encoded(*lines)
    at = data.index(b"Both are") + 4
    return data[:at] + b"\x00\x07" + data[at + 9 :], ["line_unreadable"]


def foreign_reasoning(program, lines):
    foreign = FOREIGN[program]
    if program == "Claude Code":
        at = index_of(lines, '"Yes."')
        block = {"type": "thinking", "thinking": "Hm.", "signature": foreign}
        content = lines[at]["message"]["content"]
        lines[at]["message"]["content"] = [block, *(each for each in content if each["type"] != "thinking")]
    elif program == "Codex":
        at = index_of(lines, '"function_call"')
        payload = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": foreign}
        lines.insert(at, {"timestamp": "2026-11-27T10:00:02.000Z", "type": "response_item", "payload": payload})
    else:
        at = index_of(lines, '"Yes."')
        lines[at]["content"] = [{"text": "Yes.", "thoughtSignature": foreign}]
    return encoded(*lines), ["reasoning_foreign"]


def oversized_image(program, lines):
    images = {"Claude Code": png(8100, 10), "Codex": png(10, 10, 40 << 20), "Gemini CLI": png(10, 10, 16 << 20)}
    text = json.dumps(lines).replace(png(10, 10), images[program])
    return encoded(*json.loads(text)), ["image_stubbed"]


def broken_parent_chain(program, lines):
    if program == "Claude Code":
        parent(lines, index_of(lines, "toolu_2"), uuid(77))
        return encoded(*lines), ["parent_relinked"]
    if program == "Codex":
        return encoded(*lines[1:]), ["line_restored"]
    # A rewind to a message that cannot be read removes everything.
    at = index_of(lines, "Both are")
    bad = encoded(lines[at])[:-9] + b"\n"
    rewind = encoded({"$rewindTo": uuid(5)})
    again = encoded({"id": uuid(8), "timestamp": "", "type": "user", "content": [{"text": "Thanks. And now?"}]})
    return encoded(*lines[:at]) + bad + encoded(*lines[at + 1 :]) + rewind + again, [
        "parent_relinked",
        "line_unreadable",
    ]


DAMAGE = (
    lost_result,
    doubled_result,
    orphan_result,
    cut_line,
    corrupt_middle_line,
    foreign_reasoning,
    oversized_image,
    broken_parent_chain,
)


def damaged(program, damage, *, reasoning):
    make, *_ = PROGRAMS[program]
    return damage(program, make(reasoning=reasoning, image=png(10, 10)))


@pytest.mark.parametrize("reasoning", [False, True], ids=["tools", "tools and reasoning"])
@pytest.mark.parametrize("damage", DAMAGE, ids=[damage.__name__ for damage in DAMAGE])
@pytest.mark.parametrize("program", PROGRAMS)
def test_damage_is_repaired_and_nothing_else_changes(program, damage, reasoning):
    _, name, target = PROGRAMS[program]
    data, codes = damaged(program, damage, reasoning=reasoning)
    done = repair_transcript(data, name)
    assert (done.program, [fix.code for fix in done.fixes]) == (program, codes)

    after = normalize(done.data, target)
    assert (after.fixes, after.body is None) == ([], False)
    again = repair_transcript(done.data, name)
    assert (again.data, again.fixes) == (done.data, ())

    # A changed or new line for each change; a repaired parent changes the line that follows as well.
    before, lines = data.split(b"\n"), done.data.split(b"\n")
    assert len([line for line in lines if line not in before]) <= 2
    kept = after.body.decode()
    assert [words for words in ("Thanks. And", "r2") if words not in kept] == []
    assert ("Both are" in kept) == (damage is not corrupt_middle_line and "$rewindTo" not in data.decode("latin-1"))
    assert (INTERRUPTED in kept) == (damage is lost_result)


@pytest.mark.parametrize("reasoning", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_file_without_damage_keeps_its_bytes(program, reasoning):
    make, name, _ = PROGRAMS[program]
    data = encoded(*make(reasoning=reasoning, image=png(10, 10)))
    done = repair_transcript(data, name)
    assert (done.program, done.data, done.fixes) == (program, data, ())


def test_a_prompt_that_was_given_within_a_turn_stays():
    """An attachment of 2.1.332 with a queued prompt, after the result and before the next answer."""
    common = {"sessionId": "s", "timestamp": "2026-01-01T00:00:00Z"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "hi"}
    prompt = {"type": "queued_command", "prompt": "second", "commandMode": "prompt"}
    lines = [
        {"type": "user", "uuid": "u1", "parentUuid": None, "message": {"role": "user", "content": "first"}},
        {"type": "assistant", "uuid": "a1", "parentUuid": "u1", "message": {"id": "m1", "content": [call]}},
        {"type": "user", "uuid": "u2", "parentUuid": "a1", "message": {"role": "user", "content": [result]}},
        {"type": "attachment", "uuid": "c1", "parentUuid": "u2", "attachment": prompt},
        {"type": "assistant", "uuid": "a2", "parentUuid": "c1", "message": {"id": "m2", "content": "done"}},
    ]
    text = "".join(json.dumps(line | common) + "\n" for line in lines).encode()
    done = repair_transcript(text, "s.jsonl")
    assert (done.data, done.fixes) == (text, ())
    assert b"second" in normalize(text).body


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_call_at_the_end_stays_open(program):
    make, name, _ = PROGRAMS[program]
    lines = make()
    data = encoded(*lines[: max(at for at, line in enumerate(lines) if '"r2"' in json.dumps(line))])
    if program == "Gemini CLI":
        data = data.replace(
            b'"result":[{"functionResponse":{"id":"ls__2"', b'"resultless":[{"functionResponse":{"id":"ls__2"'
        )
    assert repair_transcript(data, name).fixes == ()


def test_two_calls_of_one_message_without_results_get_one_each_in_order():
    lines = session_files.claude_code()
    at = index_of(lines, '"r1"')
    call = {"type": "tool_use", "id": "toolu_8", "name": "Grep", "input": {}}
    second = json.loads(json.dumps(lines[at - 1]))
    second["message"]["content"] = [call]
    second |= {"uuid": uuid(91), "parentUuid": uuid(1)}
    parent(lines, at + 1, uuid(91))
    lines[at] = second
    done = repair_transcript(encoded(*lines))
    made = [json.loads(line) for line in done.data.splitlines() if INTERRUPTED.encode() in line]
    assert [each["message"]["content"][0]["tool_use_id"] for each in made] == ["toolu_1", "toolu_8"]
    assert (made[0]["parentUuid"], made[1]["parentUuid"]) == (uuid(91), made[0]["uuid"])
    assert json.loads(done.data.splitlines()[index_of(lines, "toolu_2") + 2])["parentUuid"] == made[1]["uuid"]
    assert normalize(done.data, "anthropic").fixes == []


def test_a_different_result_replaces_one_that_was_not_shown_and_follows_one_that_was():
    lines = session_files.claude_code()
    at = index_of(lines, '"r1"')
    late = json.loads(json.dumps(lines[at]).replace('"r1"', '"late"'))
    shown = json.loads(json.dumps(late)) | {"uuid": uuid(91), "parentUuid": uuid(3)}
    parent(lines, at + 2, uuid(91))
    after = repair_transcript(encoded(*lines[: at + 2], shown, *lines[at + 2 :]))
    assert [fix.code for fix in after.fixes] == ["result_late_turn"]
    assert b"[Tool result of an earlier call: Read, toolu_1]\\nlate" in after.data

    lines = session_files.claude_code()
    before = repair_transcript(
        encoded(*lines[: at + 1], late | {"uuid": uuid(91), "parentUuid": uuid(2)}, *_under(lines[at + 1 :], uuid(91)))
    )
    assert [fix.code for fix in before.fixes] == ["result_replaced"]
    assert b'"content":"late"' in before.data.splitlines()[at]
    assert b'"r1"' not in b"".join(before.data.splitlines()[at + 1 :])


def _under(lines, new_parent):
    lines[0]["parentUuid"] = new_parent
    return lines


@pytest.mark.parametrize(
    ("text", "code"),
    [('"call_1","output"', "result_repeated"), ("Both are", "item_repeated")],
    ids=["output", "message"],
)
def test_a_rollouts_line_with_an_id_that_is_in_the_file_twice_is_left_out_once(text, code):
    lines = session_files.codex()
    for number, line in enumerate(lines):
        line["payload"]["id"] = f"item_{number}"
    data = encoded(*lines)
    twice = next(line for line in data.splitlines(keepends=True) if text.encode() in line)
    done = repair_transcript(data.replace(twice, twice + twice), ROLLOUT)
    assert ([fix.code for fix in done.fixes], done.data) == ([code], data)


def test_reasoning_of_a_rollout_stays_at_its_end_and_is_left_out_before_damage_and_before_a_user():
    lines = session_files.codex(reasoning=True)
    at = index_of(lines, '"reasoning"')
    ended = encoded(*lines[: at + 1])
    assert repair_transcript(ended, ROLLOUT).fixes == ()

    cut = repair_transcript(ended + encoded(lines[at + 1])[:60], ROLLOUT)
    assert [(fix.code, fix.path) for fix in cut.fixes] == [
        ("line_unreadable", f"lines.{at + 1}"),
        ("reasoning_alone", f"lines.{at}.payload"),
    ]
    assert normalize(cut.data, "openai-responses").fixes == []

    asked = repair_transcript(ended + encoded(lines[-1]), ROLLOUT)
    assert [fix.code for fix in asked.fixes] == ["reasoning_alone"]
    assert asked.data == encoded(*lines[:at], lines[-1])


def test_a_rollouts_line_without_an_id_may_be_in_the_file_twice():
    data = encoded(*session_files.codex())
    twice = next(line for line in data.splitlines(keepends=True) if b"Thanks. And now?" in line)
    assert repair_transcript(data + twice, ROLLOUT).fixes == ()


def test_lines_that_are_not_utf8_are_text_again():
    data = encoded(*session_files.codex()).replace(b"List both.", b"List \xff both.")
    done = repair_transcript(data, ROLLOUT)
    assert [(fix.code, fix.path) for fix in done.fixes] == [("line_restored", "lines.2")]
    assert "List \ufffd both.".encode() in done.data


def test_a_line_with_half_a_surrogate_pair_stays():
    data = encoded(*session_files.claude_code()).replace(b"Read both.", b"Read \\ud83d both.")
    assert repair_transcript(data).data == data


def test_a_new_session_meta_has_the_id_of_the_files_name_and_the_given_version():
    lines = session_files.codex()
    done = repair_transcript(encoded(*lines[1:]), ROLLOUT, "0.98.0")
    first, *rest = done.data.splitlines(keepends=True)
    assert b"".join(rest) == encoded(*lines[1:])
    assert json.loads(first)["payload"] == {
        "id": session_files.SESSION,
        "timestamp": "2026-11-27T10:00:00.000Z",
        "cwd": "/srv",
        "originator": "reknit",
        "cli_version": "0.98.0",
        "source": "cli",
    }


@pytest.mark.parametrize(
    ("call_id", "output", "code"),
    [("ls__1", "r1", "result_repeated"), ("ls__1", "other", "result_duplicate"), ("ls__9", "r1", "result_orphan")],
)
def test_a_second_result_with_a_call_of_a_chat_is_left_out(call_id, output, code):
    lines = session_files.gemini_chat()
    data = encoded(*lines)
    response = {"id": call_id, "name": "ls", "response": {"output": output}}
    lines[2]["toolCalls"][0]["result"].append({"functionResponse": response})
    done = repair_transcript(encoded(*lines))
    assert [(fix.code, fix.path) for fix in done.fixes] == [(code, "lines.2.toolCalls.0.result.1")]
    assert done.data == data


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("length", [12, 60])
def test_a_file_whose_last_line_was_cut_ends_with_a_line_break(program, length):
    make, name, _ = PROGRAMS[program]
    *lines, last = encoded(*make()).splitlines(keepends=True)
    done = repair_transcript(b"".join(lines) + last[:length], name)
    assert (len(done.fixes), done.data.startswith(b"".join(lines)), done.data[-1:]) == (1, True, b"\n")


def test_an_older_chat_of_one_document_is_repaired_as_a_whole():
    head, *lines = session_files.gemini_chat()
    messages = [line for line in lines if "id" in line]
    del messages[1]["toolCalls"][0]["result"]
    del messages[2]
    data = json.dumps(head | {"messages": messages}, indent=2).encode()
    done = repair_transcript(data, "session-1.json")
    assert [(fix.code, fix.path) for fix in done.fixes] == [("result_synthesised", "lines.0.messages.1.toolCalls.0")]
    assert done.data.startswith(b'{\n  "sessionId"')
    assert normalize(done.data, "gemini").fixes == []


def older_chat():
    head, *lines = session_files.gemini_chat()
    return json.dumps(head | {"messages": [line for line in lines if "id" in line]}, indent=2).encode()


def test_an_older_chat_that_was_cut_is_written_up_to_the_cut():
    data = older_chat()
    done = repair_transcript(data[: data.index(b"Both are listed") + 8], "session-1.json")
    made = json.loads(done.data)
    assert [(fix.code, fix.path) for fix in done.fixes] == [("line_cut", "lines.0")]
    whole = json.loads(data)["messages"]
    assert made["messages"][:5] == whole[:5]
    assert [message["content"] for message in made["messages"][5:]] == ["Both are"]
    assert (normalize(done.data, "gemini").fixes, repair_transcript(done.data).fixes) == ([], ())


def test_an_older_chat_with_damage_in_the_middle_is_refused():
    data = older_chat().replace(b'"ls__2"', bytes(8), 1)
    with pytest.raises(InputError) as raised:
        repair_transcript(data, "session-1.json")
    assert raised.value.code == "unreadable"


@pytest.mark.parametrize(
    "data", [b"", b"\n\n", b"{}", b'[{"role": "user"}]', b"\xff\xfe", b"tickets\n", b"[" * 100_000]
)
def test_what_is_no_session_file_is_refused(data):
    with pytest.raises(InputError) as raised:
        repair_transcript(data, "x.jsonl")
    assert raised.value.code == "unknown_shape"


@given(st.data())
def test_any_line_may_be_damaged_anywhere(data):
    program = data.draw(st.sampled_from(sorted(PROGRAMS)))
    make, name, target = PROGRAMS[program]
    lines = encoded(*make(reasoning=data.draw(st.booleans()))).splitlines()
    at = data.draw(st.integers(1, len(lines) - 2))
    begin = data.draw(st.integers(0, len(lines[at]) - 1))
    lines[at] = lines[at][:begin] + data.draw(st.binary(max_size=4)).replace(b"\n", b"") + lines[at][begin + 3 :]
    done = repair_transcript(b"\n".join(lines) + b"\n", name)
    again = repair_transcript(done.data, name)
    assert (again.data, again.fixes) == (done.data, ())
    assert normalize(done.data, target).body is not None


@pytest.mark.corpus
@pytest.mark.skipif(not CORPUS.is_dir(), reason="needs the corpus: REKNIT_CORPUS")
def test_recorded_files_stay_unchanged():
    changed = {}
    count = 0
    for path in sorted((CORPUS / "claude-code-sessions").glob("*.gz")):
        data = gzip.decompress(path.read_bytes())
        done = repair_transcript(data, path.name)
        count += 1
        if done.data != data or done.fixes:
            changed[path.name] = done.fixes
    for row in gzip.decompress((CORPUS / "agent-cli-runs.jsonl.gz").read_bytes()).splitlines():
        run = json.loads(row)
        for file in run["transcripts"]:
            data = "\n".join(file).encode()
            done = repair_transcript(data)
            count += 1
            if done.data != data or done.fixes:
                changed[run["program"], run["version"], run["name"]] = done.fixes
    assert (changed, count) == ({}, 70)
