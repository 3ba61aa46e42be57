"""Modules that a reader can hold in mind: short, introduced, and with a reason beside every exception to the rules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in ("pipeline", "topics", "reknit") for path in (ROOT / package).rglob("*.py"))
EVERYTHING = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "deploy").rglob("*.py"))]

LONGEST_MODULE = 400
LONGEST_FUNCTION = 60
# A silenced check: which one, and then why, in words.
SILENCED = re.compile(
    r"#\s*(?:noqa|type:\s*ignore)\b(?P<codes>:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*|\[[a-z-, ]+\])?(?P<why>.*)"
)


def name(path):
    return str(path.relative_to(ROOT))


def functions(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_module_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_function_fits_on_a_screen(path):
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions(path) if f.end_lineno - f.lineno >= LONGEST_FUNCTION}
    assert long == {}


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_module_says_what_it_is(path):
    introduction = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert introduction
    assert introduction.splitlines()[0].endswith((".", ":", "?"))


@pytest.mark.parametrize("path", EVERYTHING, ids=name)
def test_a_silenced_check_is_named_and_has_its_reason(path):
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    comments = [(number, SILENCED.search(line)) for number, line in lines]
    bare = [number for number, found in comments if found and not (found["codes"] and found["why"].strip())]
    assert path == Path(__file__) or bare == []


def test_every_test_module_asserts_something():
    silent = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if "assert" not in text and "pytest.raises" not in text:
            silent.append(name(path))
    assert silent == []
