"""The rules share no code with what writes requests, and every rule can be explained."""

from __future__ import annotations

import ast
import string
from pathlib import Path

import pipeline.rules
from pipeline.rules import RULES

PACKAGE = Path(pipeline.rules.__file__).parent
ALLOWED = ("pipeline.errors", "pipeline.rules")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


def test_rules_import_nothing_else_of_ours():
    modules = sorted(PACKAGE.rglob("*.py"))
    assert len(modules) > 10
    strangers = {
        (str(path.relative_to(PACKAGE)), name)
        for path in modules
        for name in imports(path)
        if name.split(".")[0] in ("pipeline", "topics") and not name.startswith(ALLOWED)
    }
    assert strangers == set()


def test_every_rule_can_be_explained():
    for key, rule in RULES.items():
        assert key == rule.id
        assert rule.summary.endswith(".")
        assert rule.repair
        assert rule.source
        assert [name for _, name, _, _ in string.Formatter().parse(rule.message) if name == ""] == []
        assert (rule.severity == "model") == bool(rule.families)


def test_rules_that_a_body_cannot_show_say_why():
    assert sorted(rule.id for rule in RULES.values() if rule.unchecked) == [
        "ANT-06b", "ANT-07a", "ANT-22", "ANT-33", "COP-05", "GEM-04b", "GEM-04c", "GEM-11", "MMX-01", "OAI-01c",
        "OAI-22", "RSP-04", "RSP-07", "RSP-23",
    ]  # fmt: skip
