"""The page of errors: each code with the party at fault and its message, read from where the code raises it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

import reknit.pipeline
from reknit.pipeline.explain.reference.markdown import WRITTEN, code, prose, table
from reknit.pipeline.metrics import DEAD_LETTER_CODES

_CODE = re.compile(r"[a-z][a-z0-9_]+")
_FAULTS: Final = {"caller": "caller", "provider": "provider", "us": "Reknit"}
_INTRO = (
    "Every error is a `reknit.ReknitError` with `code`, `message`, `path`, `rule` and `fault`: the party that can "
    "remove the cause. Commands print it as `path: message [code]`, and with `--json` as an object. `…` is what "
    "depends on the input. A record that cannot be processed becomes a dead letter with the code in "
    "`reknit.error.code` ([what to do](../operating.md#dead-letters-and-parked-sessions)). A rule that a request "
    "breaks is in [rules](../README.md#reference) by its id."
)


class Raised(Struct, frozen=True, order=True):
    """One place that makes an error: its code, its class, and its message with ``…`` for values."""

    code: str
    kind: str
    message: str


class ErrorClass(Struct, frozen=True):
    """A class of errors as its definition says it: its bases, and the party at fault where the class says it."""

    bases: tuple[str, ...]
    fault: str
    summary: str


def errors_page() -> str:
    """Return ``docs/reference/errors.md``."""
    root = Path(reknit.pipeline.__file__).parent
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(root.rglob("*.py"))]
    classes = {name: found for tree in trees for name, found in _classes(tree)}
    ours = {name for name in classes if _is_ours(name, classes)}
    raised = {found for tree in trees for found in _raised(tree, ours)}
    codes = sorted({each.code for each in raised} | set(DEAD_LETTER_CODES))
    rows = (_row(name, sorted(each for each in raised if each.code == name), classes) for name in codes)
    kinds = (
        (code(name), _fault(name, classes), prose(classes[name].summary)) for name in sorted(ours - {"ReknitError"})
    )
    head = ("code", "fault", "dead letter", "message")
    lines = ["# Errors", "", WRITTEN, "", _INTRO, "", "## Codes", "", *table(head, rows)]
    lines += ["## Classes", "", *table(("class", "fault", "meaning"), kinds)]
    return "\n".join(lines).rstrip() + "\n"


def _row(name: str, raised: list[Raised], classes: dict[str, ErrorClass]) -> tuple[str, str, str, str]:
    faults = sorted({_fault(each.kind, classes) for each in raised})
    messages = dict.fromkeys(prose(each.message) for each in raised if each.message.strip("… "))
    return code(name), ", ".join(faults), "yes" if name in DEAD_LETTER_CODES else "", "<br>".join(messages)


def _classes(tree: ast.Module) -> Iterator[tuple[str, ErrorClass]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error"):
            faults = [
                each.value.value
                for each in node.body
                if isinstance(each, ast.AnnAssign | ast.Assign)
                and "fault" in ast.unparse(each).partition("=")[0]
                and isinstance(each.value, ast.Constant)
            ]
            summary = (ast.get_docstring(node) or "").partition("\n\n")[0]
            bases = tuple(ast.unparse(base) for base in node.bases)
            yield node.name, ErrorClass(bases, str(faults[0]) if faults else "", summary)


def _is_ours(name: str, classes: dict[str, ErrorClass]) -> bool:
    return name == "ReknitError" or (name in classes and any(_is_ours(base, classes) for base in classes[name].bases))


def _fault(name: str, classes: dict[str, ErrorClass]) -> str:
    found = classes[name]
    if found.fault:
        return _FAULTS[found.fault]
    return next((_fault(base, classes) for base in found.bases if base in classes), "")


def _raised(tree: ast.Module, ours: set[str]) -> Iterator[Raised]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        kind, given = ast.unparse(node.func).rpartition(".")[2], node.args[0]
        named = isinstance(given, ast.Constant) and isinstance(given.value, str) and _CODE.fullmatch(given.value)
        if kind in ours and isinstance(given, ast.Constant) and named:
            yield Raised(str(given.value), kind, _message(node.args[1]))


def _message(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_message(value) for value in values)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _message(left) + _message(right)
    return "…"
