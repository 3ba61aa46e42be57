"""The other blocks of docs/testing.md run unchanged: its cases, any history, any function."""

import re
from pathlib import Path

from click.testing import CliRunner
from hypothesis import settings

from reknit.pipeline.cli.offline import test_command as command
from reknit.testing import Kit

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def shown(word, language="python"):
    (block,) = [
        text for text in re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if word in text
    ]
    return block


def test_the_cases_pass():
    cases = shown('"no orphan"', language="")
    done = CliRunner().invoke(command, ["-"], input=cases)
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 3)


def test_any_history_keeps_the_promises():
    # The page's own target is like copilot-cli, which needs no registration here.
    given = {"Kit": Kit}
    exec(shown("from hypothesis").replace("house-cli", "copilot-cli"), given)  # noqa: S102  the page's own code
    settings(max_examples=20, database=None)(given["test_any_history"])()


def test_any_function_is_checked():
    def my_function(messages):
        return {"messages": [{"role": "user", "content": "Hello."}]}

    exec(shown("CallableKit"), {"my_function": my_function})  # noqa: S102  the page's own code
