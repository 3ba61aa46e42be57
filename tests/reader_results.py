"""Short summaries of how readers parse a message or a transcript, and the vectors of the conformance tests."""

import json
from pathlib import Path

import pytest

from reknit.pipeline.errors import InputError
from reknit.pipeline.history.readers.shapes import read_message
from reknit.pipeline.model import Text, Thinking, ToolResult, ToolUse

SAY = {
    Text: lambda block: block.text,
    ToolUse: lambda block: f"call {block.id}",
    ToolResult: lambda block: f"result {block.tool_use_id}: {block.content}",
    Thinking: lambda block: f"thought {block.thinking}",
}


def vectors(name):
    """Return the rows of a file in the directory of the conformance tests."""
    lines = (Path(__file__).parent / "conformance" / f"{name}.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def one(message, index=0, source="auto"):
    """Return the turn of a message, and the codes and places of its fixes."""
    turns, fixes = read_message(message, index=index, source=source)
    assert len(turns) == 1
    return turns[0], named(fixes)


def refusal(function, *given, **options):
    """Return the code and the place of the error that rejects something."""
    with pytest.raises(InputError) as caught:
        function(*given, **options)
    return caught.value.code, caught.value.path


def hard(done):
    """Return the violations for which a request is rejected."""
    return [violation for violation in done.violations if violation.severity == "hard"]


def named(fixes):
    return [(fix.code, fix.path) for fix in fixes]


def shown(found):
    """Return each turn as its role (``*``: written by a program) and the texts of its blocks."""
    turns = found.conversation.turns
    return [(f"{turn.role}{'*' * turn.synthetic}", *(SAY[type(each)](each) for each in turn.blocks)) for turn in turns]
