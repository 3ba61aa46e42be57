"""Each rule of the OpenAI APIs and of vLLM against its vectors: what breaks it, in which words, and what nearly does.

A vector holds a ``body`` or ``raw`` text; ``whole_only`` ones have no list of messages to fold.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.rules import RULE_SETS, RULES, Violation, validate

KEYS = {"openai-chat": "messages", "openai-responses": "input", "vllm": "messages"}
HERE = Path(__file__).parent
VECTORS = [
    {"target": target, **json.loads(line)}
    for target in KEYS
    for line in (HERE / f"{target.replace('-', '_')}_rules.jsonl").read_text("utf-8").splitlines()
]
FOLDED = [vector for vector in VECTORS if not vector.get("whole_only")]


def named(vector):
    return f"{vector['rule']}-{vector['case']}"


def text_of(vector) -> str:
    return vector["raw"] if "raw" in vector else json.dumps(vector["body"], ensure_ascii=False, separators=(",", ":"))


def judge(vector) -> list[Violation]:
    return validate(text_of(vector), vector["target"])


def fold(text: str, target: str) -> list[Violation]:
    """Judge a body item by item; its last key is the list."""
    rules = RULE_SETS[target]
    head, _, rest = text.partition(f'"{KEYS[target]}":[')
    state, found = rules.start((head.removesuffix(",") + "}").encode())
    decoder = json.JSONDecoder()
    at = 0
    while rest[at] != "]":
        _, end = decoder.raw_decode(rest, at)
        state, more = rules.step(state, rest[at:end].encode())
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
    check(judge(vector), vector)


@pytest.mark.parametrize("vector", FOLDED, ids=named)
def test_item_by_item(vector):
    found = fold(text_of(vector), vector["target"])
    check(found, vector)
    assert sorted(map(str, found)) == sorted(map(str, judge(vector)))


def test_a_near_miss_breaks_nothing_hard():
    """A near miss is a request that the provider takes; were it broken elsewhere, it would prove little."""
    assert [
        (vector["rule"], violation)
        for vector in VECTORS
        if vector["case"] == "near"
        for violation in judge(vector)
        if violation.severity == "hard"
    ] == []


@pytest.mark.parametrize("target", KEYS)
def test_every_rule_has_a_breach_and_a_near_miss(target):
    seen = {(vector["rule"], vector["case"]) for vector in VECTORS if vector["target"] == target}
    wanted = {
        (rule.id, case)
        for rule in RULES.values()
        if rule.target == target and not rule.unchecked
        for case in ("breach", "near")
    }
    assert seen == wanted


@pytest.mark.parametrize(("target", "known"), [("openai-chat", "gpt-5-mini"), ("vllm", "Qwen/Qwen3.5-9B")])
def test_a_known_model_has_a_rule_or_has_it_not(target, known):
    """Severity ``model`` is for a model that is not known."""
    unknown = [vector for vector in VECTORS if vector["target"] == target and vector.get("severity") == "model"]
    found = [violation for vector in unknown for violation in validate(text_of(vector), target, known)]
    assert unknown
    assert [violation for violation in found if violation.severity == "model"] == []
