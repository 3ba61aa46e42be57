"""Each rule of the Messages API against its vectors: what breaks it, in which words, and what only nearly does.

A vector holds a ``body`` or ``raw`` text. In a body the string ``@pad`` stands for ``pad`` characters: of an image's
base64, or of text.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from pipeline.rules import RULE_SETS, RULES, Violation, validate

VECTORS = [
    json.loads(line) for line in (Path(__file__).parent / "anthropic_rules.jsonl").read_text("utf-8").splitlines()
]
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\0\0\0\0").decode()
FOLDED = [vector for vector in VECTORS if not vector.get("whole_only")]


def named(vector):
    return f"{vector['rule']}-{vector['case']}"


def text_of(vector) -> str:
    if "raw" in vector:
        return vector["raw"]
    text = json.dumps(vector["body"], ensure_ascii=False, separators=(",", ":"))
    if "pad" in vector:
        stem = PNG if '"image"' in text else "a"
        text = text.replace("@pad", stem + "A" * (vector["pad"] - len(stem)))
    return text


def fold(text: str) -> list[Violation]:
    """Judge a body message by message; its last key is ``messages``."""
    rules = RULE_SETS["anthropic"]
    head, _, rest = text.partition('"messages":[')
    state, found = rules.start((head.removesuffix(",") + "}").encode())
    decoder = json.JSONDecoder()
    at = 0
    while rest[at] != "]":
        _, end = decoder.raw_decode(rest, at)
        state, more = rules.step(state, rest[at:end].encode("utf-8", "surrogatepass"))
        found += more
        at = end + (rest[end] == ",")
    return found + rules.finish(state)


def check(found: list[Violation], vector) -> None:
    reported = [violation for violation in found if violation.rule == vector["rule"]]
    if vector["case"] == "near":
        assert reported == []
    else:
        expected = Violation(vector["rule"], vector["path"], vector["message"], vector["severity"])
        assert expected in reported


@pytest.mark.parametrize("vector", VECTORS, ids=named)
def test_whole_body(vector):
    check(validate(text_of(vector)), vector)


@pytest.mark.parametrize("vector", FOLDED, ids=named)
def test_message_by_message(vector):
    text = text_of(vector)
    found = fold(text)
    check(found, vector)
    assert sorted(map(str, found)) == sorted(map(str, validate(text)))


def test_a_near_miss_breaks_nothing_hard():
    """A near miss is a request that the provider takes; were it broken elsewhere, it would prove little."""
    assert [
        (vector["rule"], violation)
        for vector in VECTORS
        if vector["case"] == "near"
        for violation in validate(text_of(vector))
        if violation.severity == "hard"
    ] == []


def test_every_rule_has_a_breach_and_a_near_miss():
    seen = {(vector["rule"], vector["case"]) for vector in VECTORS}
    wanted = {
        (rule.id, case)
        for rule in RULES.values()
        if rule.target == "anthropic" and not rule.unchecked
        for case in ("breach", "near")
    }
    assert seen == wanted
