"""The generated reference: it is complete, and the examples of docstrings run. `test_docs_are_current` compares it."""

import ast
import doctest
import re
from importlib import import_module

import pytest

import reknit
import reknit.client
import reknit.testing
from reknit.pipeline.cli import COMMANDS
from reknit.pipeline.explain.reference import reference_pages
from reknit.pipeline.explain.reference.docstrings import markdown_of
from reknit.pipeline.explain.reference.errors import _raised
from reknit.pipeline.explain.reference.markdown import prose, table
from reknit.pipeline.metrics import DEAD_LETTER_CODES, STAGE_COUNTERS
from reknit.topics import TOPICS

PAGES = reference_pages()
FUNCTIONS = [name for name in reknit.__all__ if name not in {"__version__", "ReknitError"}]
DOCUMENTED = sorted({getattr(reknit, name).__module__ for name in FUNCTIONS})


def headings(page, level):
    return re.findall(rf"^{'#' * level} (.+)$", PAGES[f"reference/{page}.md"], re.MULTILINE)


def first_cells(page):
    return re.findall(r"^\| `([^`]+)` \|", PAGES[f"reference/{page}.md"], re.MULTILINE)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_examples_of_docstrings_run(name):
    done = doctest.testmod(import_module(name))
    assert done.attempted > 1
    assert done.failed == 0


def test_each_command_and_each_subcommand_has_a_section():
    assert headings("cli", 2) == [f"reknit {name}" for name in COMMANDS]
    assert {"reknit ingest turns", "reknit topics apply", "reknit replay list"} <= set(headings("cli", 3))
    assert PAGES["reference/cli.md"].count("| `--bootstrap-servers HOST:PORT,…` |") > 10


def test_each_public_name_has_a_section():
    assert {"Session", "normalize", "recover", "validate", "heal", "convert"} <= set(FUNCTIONS)
    assert {*reknit.__all__, *reknit.client.__all__, *reknit.testing.__all__} - {"__version__"} <= set(
        headings("library", 3)
    )
    assert {"Session.append", "Session.request", "Turns.append", "Kit.check"} <= set(headings("library", 4))
    assert PAGES["reference/library.md"].count("**Example**") == len(FUNCTIONS)


def test_each_topic_metric_and_code_is_listed():
    assert headings("topics", 2) == [topic.name for topic in TOPICS]
    assert set(STAGE_COUNTERS) | {"reknit_serve_requests_total", "reknit_build_info"} <= set(first_cells("metrics"))
    assert {*DEAD_LETTER_CODES, "config_value", "unknown_target"} <= set(first_cells("errors"))
    assert "`turn.appended`" in PAGES["reference/topics.md"]


def test_an_error_is_found_with_its_message():
    tree = ast.parse('def f(x):\n    raise InputError("too_big", f"{x} bytes" + " at most", path="a")\n')
    (found,) = _raised(tree, {"InputError"})
    assert (found.code, found.kind, found.message) == ("too_big", "InputError", "… bytes at most")
    assert list(_raised(tree, {"OtherError"})) == []


def test_text_is_not_read_as_markup():
    assert prose("a <b> ``x<y>`` `*` c_d") == "a \\<b\\> `x<y>` `*` c\\_d"
    assert table(("a", "b"), [("1|2", "3")]) == ["| a | b |", "|---|---|", "| 1\\|2 | 3 |", ""]


def test_a_docstring_has_its_sections():
    arguments = "Args:\n    a: the first,\n        in two lines.\n    b: the second.\n"
    text = f"Do it.\n\n{arguments}\nRaises:\n    InputError: bad.\n"
    assert list(markdown_of(text)) == [
        *("Do it.", "", "**Arguments**", "", "- `a`: the first, in two lines.", "- `b`: the second.", ""),
        *("**Raises**", "", "- `InputError`: bad.", ""),
    ]
