"""The fix catalogue: complete, worded, and the only source of codes."""

import ast
import re
from pathlib import Path

from msgspec import Raw

from reknit.pipeline.fixes import FIXES, Fix, digest, make

PIPELINE = Path(__file__).parents[2] / "pipeline"
RECORDERS = {"make", "note_fix", "drop", "change", "add_fix"}


def test_codes_are_labels():
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in FIXES)
    assert all(FIXES[code].code == code for code in FIXES)


def test_summaries_fit_on_one_line():
    assert len({entry.summary for entry in FIXES.values()}) == len(FIXES)
    assert all(entry.summary[0].islower() and not entry.summary.endswith(".") for entry in FIXES.values())


def test_added_or_dropped_content_is_lossy_unless_the_catalogue_says_why_not():
    assert [entry.code for entry in FIXES.values() if entry.fate == "synthesised" and entry.lossless] == []
    harmless_drops = {entry.code for entry in FIXES.values() if entry.fate == "dropped" and entry.lossless}
    assert {entry.code for entry in FIXES.values() if entry.spared} == harmless_drops


def recorded_codes():
    """Return the codes that the source files pass to a recorder."""
    for path in sorted(PIPELINE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            code = node.args[0].value
            if name in RECORDERS and isinstance(code, str) and "_" in code and code.islower():
                yield path, code


def test_every_recorded_code_is_in_the_catalogue():
    found = [(path.name, code) for path, code in recorded_codes() if "history" in path.parts or "targets" in path.parts]
    assert len(found) > 40
    assert [(name, code) for name, code in found if code not in FIXES] == []


def test_a_fix_has_digests_of_before_and_after():
    fix = make("input_wrapped", "messages.1.content.0", before=Raw(b"[1]"), after=Raw(b'{"_raw":[1]}'), detail="d")
    assert fix == Fix(
        code="input_wrapped",
        path="messages.1.content.0",
        lossless=True,
        detail="d",
        before=digest(Raw(b"[1]")),
        after=digest(Raw(b'{"_raw":[1]}')),
    )
    assert re.fullmatch(r"[0-9a-f]{16}", fix.before)


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
