"""The commands `reknit ingest turns --mirror` and `reknit send`: records made from input, and errors at start-up."""

import asyncio
import json
import sys

import pytest
from click.testing import CliRunner

from reknit.pipeline.cli import main
from reknit.pipeline.cli.ingest import whole_transcripts
from reknit.pipeline.cli.inputs import documents
from reknit.pipeline.cli.turns import records_of

MESSAGE = {"role": "user", "content": "hi"}
HISTORY = {"messages": [MESSAGE], "model": "m"}
TURN = {"type": "turn.appended", "message": MESSAGE}


def made(document, **options):
    return [json.loads(record) for record in records_of(json.dumps(document).encode(), **options)]


@pytest.mark.parametrize(
    ("document", "plain", "mirrored"),
    [
        (MESSAGE, [TURN], [TURN | {"request": False}]),
        (TURN | {"id": "a"}, [TURN | {"id": "a"}], [TURN | {"id": "a", "request": False}]),
        (TURN | {"request": True}, [TURN | {"request": True}], [TURN | {"request": True}]),
        ({"type": "request.wanted"}, [{"type": "request.wanted"}], [{"type": "request.wanted"}]),
        (
            HISTORY,
            [
                {"type": "session.opened", "model": "m"},
                {"type": "history.restored", "messages": [MESSAGE]},
                {"type": "request.wanted"},
            ],
            [{"type": "session.opened", "model": "m"}, {"type": "history.restored", "messages": [MESSAGE]}],
        ),
        (
            [MESSAGE],
            [{"type": "history.restored", "messages": [MESSAGE]}, {"type": "request.wanted"}],
            [{"type": "history.restored", "messages": [MESSAGE]}],
        ),
    ],
)
def test_mirrored_input_requests_nothing_unless_a_record_asks_for_it(document, plain, mirrored):
    assert made(document) == plain
    assert made(document, mirror=True) == mirrored


LINES = [
    {"type": "user", "uuid": "u1", "parentUuid": None, "sessionId": "s", "message": MESSAGE},
    {
        "type": "assistant",
        "uuid": "a1",
        "parentUuid": "u1",
        "message": {"role": "assistant", "model": "m", "content": "x"},
    },
]


def test_the_lines_of_a_transcript_are_one_history(tmp_path):
    async def read_all(path):
        return [found async for found in whole_transcripts(documents(str(path)))]

    text = "\n".join(map(json.dumps, LINES)) + '\n{"type":'
    (tmp_path / "session.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "turns.jsonl").write_text("\n".join(map(json.dumps, (MESSAGE, TURN))), encoding="utf-8")
    assert asyncio.run(read_all(tmp_path / "session.jsonl")) == [(1, text.encode())]
    assert [number for number, _ in asyncio.run(read_all(tmp_path / "turns.jsonl"))] == [1, 2]
    records = [json.loads(record) for record in records_of(text.encode())]
    assert records == [
        {"type": "session.opened", "model": "m"},
        {"type": "history.restored", "messages": [*LINES, '{"type":']},
        {"type": "request.wanted"},
    ]


# `reknit send` reports configuration errors at the start, before it connects to a broker.

SECRET = "sk-ant-4711"  # noqa: S105  not a real one
TO = ("--to", "https://api.example.org/v1")


def sent(*arguments, env=None):
    return CliRunner().invoke(main, ["send", "--bootstrap-servers", "127.0.0.1:1", *arguments], env=env)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "say where requests go"),
        (("--exec", "no-such-program --key sk-ant-4711"), "no-such-program is not an executable program"),
        (("--exec", "/no/such/program"), "/no/such/program is not an executable program"),
        (("--exec", "'"), "the command cannot be read"),
        (("--exec", ""), "an empty command is not an executable"),
        (("--to", "api.example.org/?key=sk-ant-4711"), "expected a URL that begins with http"),
        ((*TO, "--header", "x-api-key sk-ant-4711"), "expected NAME: VALUE"),
        ((*TO, "--header", "x-api-key: sk-ant-4711\nx: y"), "another control character"),
        ((*TO, "--secret-header", "x-api-key: sk-ant-4711"), "expected NAME=VARIABLE with a variable that is set"),
        ((*TO, "--secret-header", "x-api-key=sk-ant-4711"), "expected NAME=VARIABLE with a variable that is set"),
        ((*TO, "--secret-header", "sk-ant-4711="), "expected NAME=VARIABLE with a variable that is set"),
        ((*TO, "--source", "none"), "expected one of"),
        ((*TO, "--target", "none"), "expected one of"),
    ],
)
def test_unusable_options_end_the_command_with_2_and_print_no_secret(arguments, said):
    done = sent(*arguments)
    assert (done.exit_code, said in done.output) == (2, True), done.output
    assert SECRET not in done.output


def test_no_broker_ends_with_75():
    done = sent(*TO, "--secret-header", "x-api-key=KEY", env={"KEY": SECRET})
    assert (done.exit_code, "no Kafka broker answers" in done.output) == (75, True), done.output
    assert SECRET not in done.output


def test_a_program_is_found_on_the_path():
    done = sent("--exec", f"{sys.executable} -c pass")
    assert (done.exit_code, "no Kafka broker answers" in done.output) == (75, True), done.output
