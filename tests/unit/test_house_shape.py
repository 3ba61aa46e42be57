"""Readable modules: a docstring each, short functions, and a reason for each exception."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in ("pipeline", "topics", "reknit") for path in (ROOT / package).rglob("*.py"))
EVERYTHING = [*SOURCES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "deploy").rglob("*.py"))]

LONGEST_FUNCTION = 60
# A suppressed check: its code, followed by the reason in words.
SILENCED = re.compile(
    r"#\s*(?:noqa|type:\s*ignore)\b(?P<codes>:\s*[A-Z]+\d+(?:,\s*[A-Z]+\d+)*|\[[a-z-, ]+\])?(?P<why>.*)"
)


def name(path):
    return str(path.relative_to(ROOT))


def functions(path):
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def read(path):
    return path.read_text(encoding="utf-8")


def test_functions_fit_on_a_screen():
    lengths = {f"{name(path)}:{f.name}": f.end_lineno - f.lineno + 1 for path in SOURCES for f in functions(path)}
    assert {place: length for place, length in lengths.items() if length > LONGEST_FUNCTION} == {}


def test_modules_have_a_docstring():
    first_lines = {name(path): (ast.get_docstring(ast.parse(read(path))) or "").partition("\n")[0] for path in SOURCES}
    assert {place: line for place, line in first_lines.items() if not line.endswith((".", ":", "?"))} == {}


def test_suppressed_checks_are_named_and_have_a_reason():
    bare = [
        f"{name(path)}:{number}"
        for path in EVERYTHING
        if path != Path(__file__)
        for number, line in enumerate(read(path).splitlines(), start=1)
        if (found := SILENCED.search(line)) and not (found["codes"] and found["why"].strip())
    ]
    assert bare == []


def test_every_test_module_asserts_something():
    silent = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = read(path)
        if "assert" not in text and "pytest.raises" not in text:
            silent.append(name(path))
    assert silent == []
