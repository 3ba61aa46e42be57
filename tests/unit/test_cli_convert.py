"""``reknit convert`` and ``reknit.convert``: a history in the shape of another framework, and what it costs."""

import json

import msgspec
import pytest
from build import call, result, said, user
from click.testing import CliRunner

import reknit
from reknit.pipeline.cli.convert import convert_command
from reknit.pipeline.errors import InputError, UnknownTargetError
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.history.writers import WRITERS
from reknit.pipeline.session import Session
from reknit.pipeline.session.export import export_as

HISTORY = [
    user("Read."),
    said("I look.", call("c1", "read", path="a")),
    user({**result("c1", "No."), "is_error": True}),
    said("It is missing."),
]


def run(given, *arguments):
    return CliRunner().invoke(convert_command, list(arguments), input=json.dumps(given))


def test_a_history_is_printed_in_another_shape():
    done = run(HISTORY, "--to", "pydantic-ai")
    assert (done.exit_code, done.stderr) == (0, "")
    kinds = [(message["kind"], [part["part_kind"] for part in message["parts"]]) for message in json.loads(done.stdout)]
    assert kinds == [
        ("request", ["user-prompt"]),
        ("response", ["text", "tool-call"]),
        ("request", ["tool-return"]),
        ("response", ["text"]),
    ]


def test_a_loss_is_a_line_and_an_exit_code():
    done = run(HISTORY, "--to", "otel-genai")
    assert done.exit_code == 3
    assert "messages.2.content.0" in done.stderr
    assert "is_error" in done.stderr
    assert run(HISTORY, "--to", "otel-genai", "-q").stderr == ""


def test_a_shape_that_is_not_written_is_refused():
    done = run(HISTORY, "--to", "letta")
    assert done.exit_code == 2
    assert "langchain" in done.stderr
    with pytest.raises(UnknownTargetError):
        reknit.convert(HISTORY, to="letta")


def test_the_shape_of_the_input_can_be_named():
    written = run(HISTORY, "--to", "ai-sdk-model").stdout
    assert run(json.loads(written), "--from", "ai-sdk-model", "--to", "ai-sdk-model").stdout == written


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("given", ["{", "[1]", [], [{"x": 1}], {"messages": 5}], ids=str)
def test_bad_input_is_refused_or_empty(name, given):
    try:
        done = reknit.convert(given, to=name)
    except InputError:
        return
    assert done.messages == []


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}]], ids=str)
def test_the_system_prompt_is_written_or_a_loss(name, system):
    document = {"system": system, "messages": HISTORY, "tools": [{"name": "read", "input_schema": {}}]}
    done = reknit.convert(document, to=name)
    lost = {fix.path.split(".")[0] for fix in done.fixes}
    assert ("system" in lost) == (b"Be brief." not in done.data)
    assert "tools" in lost


@pytest.mark.parametrize("name", WRITERS)
def test_a_broken_history_stays_broken(name):
    open_call = said("I look.", call("c1", "read", path="a"))
    done = reknit.convert([user("Read."), open_call, user("Go on.")], to=name)
    blocks = [block for turn in read(done.data, WRITERS[name].source).conversation.turns for block in turn.blocks]
    kinds = [msgspec.json.decode(msgspec.json.encode(block))["type"] for block in blocks]
    assert kinds == ["text", "text", "tool_use", "text"]


@pytest.mark.parametrize("name", WRITERS)
def test_a_session_is_exported_as_its_history_is_converted(name):
    session = Session(("anthropic",), system="Be brief.")
    for message in HISTORY:
        session.append(message)
    written = export_as(session, WRITERS[name])
    done = reknit.convert({"system": "Be brief.", "messages": HISTORY}, to=name)
    assert (written.data, written.fixes) == (done.data, done.fixes)
