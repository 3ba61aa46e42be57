"""Report modules that may hold more than one idea: ``python tests/module_report.py [PATH ...]``.

A module is listed if it has groups of definitions that do not refer to each other, or more than 600 lines. The report
is a reading aid: a module with two groups may still be one idea, for example a table and its lookups. The exit status
is always 0.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipeline", "topics", "reknit")
MOST_LINES = 600
# A smaller group is a constant, a type alias or a helper that only other modules call.
LEAST_LINES = 25


class Group(NamedTuple):
    """Definitions of a module that refer to each other, directly or through others."""

    names: tuple[str, ...]
    lines: int


class Definition(NamedTuple):
    names: frozenset[str]
    uses: frozenset[str]
    lines: int


def groups(source: str) -> list[Group]:
    """Return the unconnected groups of a module's definitions, largest first; groups below 25 lines are left out."""
    waiting = list(_definitions(ast.parse(source)))
    found = []
    while waiting:
        members = [waiting.pop(0)]
        while near := [each for each in waiting if any(_are_connected(each, member) for member in members)]:
            members += near
            waiting = [each for each in waiting if each not in near]
        found.append(
            Group(tuple(sorted(set().union(*(each.names for each in members)))), sum(m.lines for m in members))
        )
    return sorted((group for group in found if group.lines >= LEAST_LINES), key=lambda group: -group.lines)


def _are_connected(one: Definition, other: Definition) -> bool:
    return bool(one.uses & other.names or other.uses & one.names)


def _definitions(tree: ast.Module) -> Iterator[Definition]:
    """Yield what a module defines at its top level: functions, classes and assigned names."""
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = {name}
            case ast.Assign() | ast.AnnAssign():
                names = {
                    each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
                }
            case _:
                continue
        uses = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        yield Definition(frozenset(names), frozenset(uses - names), lines)


def report(paths: list[Path]) -> Iterator[str]:
    """Yield one line for each module above 600 lines, and lines for each module with unconnected groups."""
    for path in paths:
        source = path.read_text(encoding="utf-8")
        lines = source.count("\n")
        if lines > MOST_LINES:
            yield f"{path}: {lines} lines"
        found = groups(source)
        if len(found) > 1:
            yield f"{path}: {len(found)} groups of definitions that do not refer to each other"
            for group in found:
                shown = ", ".join(group.names[:6]) + (", …" if len(group.names) > 6 else "")
                yield f"    {group.lines:4} lines: {shown}"


def main() -> None:
    named = [Path(each) for each in sys.argv[1:]] or [ROOT / package for package in PACKAGES]
    paths = [path for each in named for path in (sorted(each.rglob("*.py")) if each.is_dir() else [each])]
    here = Path.cwd()
    shown = [path.relative_to(here) if path.is_relative_to(here) else path for path in paths]
    sys.stdout.write("".join(f"{line}\n" for line in report(shown)))


if __name__ == "__main__":
    main()
