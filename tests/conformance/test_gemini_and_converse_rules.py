"""Each rule of Gemini and of Bedrock Converse against its vectors: what breaks it, in which words, what only nearly.

A vector holds a ``body`` whose last key is the list of messages, or ``raw`` text; a breach also the path, the message
and the severity of its rule. botocore's model of Converse judges the shape of every body that our rules take.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from pipeline.rules import RULE_SETS, RULES, Violation, validate
from pipeline.rules.models import converse_family, gemini_family

KEYS = {"gemini": "contents", "bedrock-converse": "messages"}


def vectors_of(target: str) -> list[dict]:
    path = Path(__file__).parent / f"{target.replace('-', '_')}_rules.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


VECTORS = [
    pytest.param(target, vector, id=f"{vector['rule']}-{vector['case']}")
    for target in KEYS
    for vector in vectors_of(target)
]


def text_of(vector: dict) -> str:
    return vector["raw"] if "raw" in vector else json.dumps(vector["body"], ensure_ascii=False, separators=(",", ":"))


def fold(text: str, target: str) -> list[Violation]:
    """Judge a body message by message."""
    rules = RULE_SETS[target]
    head, _, rest = text.partition(f'"{KEYS[target]}":[')
    state, found = rules.start((head.removesuffix(",") + "}").encode())
    decoder = json.JSONDecoder()
    at = 0
    while rest[at] != "]":
        _, end = decoder.raw_decode(rest, at)
        state, more = rules.step(state, rest[at:end].encode("utf-8", "surrogatepass"))
        found += more
        at = end + (rest[end] == ",")
    return found + rules.finish(state)


def check(found: list[Violation], vector: dict) -> None:
    reported = [violation for violation in found if violation.rule == vector["rule"]]
    if vector["case"] == "near":
        assert reported == []
    else:
        assert Violation(vector["rule"], vector["path"], vector["message"], vector["severity"]) in reported


@pytest.mark.parametrize(("target", "vector"), VECTORS)
def test_whole_body(target, vector):
    check(validate(text_of(vector), target), vector)


@pytest.mark.parametrize(
    ("target", "vector"), [param for param in VECTORS if param.values[1]["rule"] not in ("GEM-17", "BED-33")]
)
def test_message_by_message(target, vector):
    text = text_of(vector)
    found = fold(text, target)
    check(found, vector)
    assert sorted(map(str, found)) == sorted(map(str, validate(text, target)))


@pytest.mark.parametrize("target", KEYS)
def test_a_near_miss_breaks_nothing_hard(target):
    """A near miss is a request that the provider takes; were it broken elsewhere, it would prove little."""
    assert [
        (vector["rule"], violation)
        for vector in vectors_of(target)
        if vector["case"] == "near"
        for violation in validate(text_of(vector), target)
        if violation.severity == "hard"
    ] == []


@pytest.mark.parametrize("target", KEYS)
def test_every_rule_has_a_breach_and_a_near_miss(target):
    seen = {(vector["rule"], vector["case"]) for vector in vectors_of(target)}
    rules = [rule.id for rule in RULES.values() if rule.target == target and not rule.unchecked]
    assert seen == {(rule, case) for rule in rules for case in ("breach", "near")}


def test_what_no_body_can_show_of_gemini_says_why():
    unchecked = {rule.id for rule in RULES.values() if rule.target == "gemini" and rule.unchecked}
    assert unchecked == {"GEM-04b", "GEM-04c", "GEM-11"}


@pytest.mark.parametrize("target", KEYS)
def test_the_model_given_wins_over_the_model_named(target):
    """A rule of one model family is not held against another, and of a model that nobody knows it is the model's."""
    cases = {
        "gemini": ("GEM-04", {"gemini-3-pro": ["hard"], "gemini-2.0-flash": [], "other": ["model"]}),
        "bedrock-converse": ("BED-24", {"anthropic.claude-x": ["hard"], "amazon.nova-lite-v1:0": [], "o": ["model"]}),
    }
    rule, by_model = cases[target]
    body = next(vector["body"] for vector in vectors_of(target) if vector["rule"] == rule)
    for model, severities in by_model.items():
        assert [found.severity for found in validate(body, target, model) if found.rule == rule] == severities


def botocore_report(body: dict) -> str:
    """What botocore's client would say of a body before it sends it; bytes are base64 on the wire, not for clients."""
    session = pytest.importorskip("botocore.session", reason="botocore is a development dependency")
    from botocore.validate import ParamValidator

    def as_client(value: object, name: str = "") -> object:
        if isinstance(value, dict):
            return {key: as_client(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [as_client(inner) for inner in value]
        return base64.b64decode(value) if name in ("bytes", "redactedContent") and isinstance(value, str) else value

    model = session.get_session().get_service_model("bedrock-runtime").operation_model("Converse")
    return ParamValidator().validate(as_client(body), model.input_shape).generate_report()


TAKEN = [
    pytest.param(vector["body"], id=f"{vector['rule']}-{vector['case']}")
    for vector in vectors_of("bedrock-converse")
    if "body" in vector and not validate(vector["body"], "bedrock-converse")
]


@pytest.mark.parametrize("body", TAKEN)
def test_botocore_takes_the_shape_of_what_the_rules_take(body):
    assert botocore_report(body) == ""


def test_some_bodies_are_taken():
    assert len(TAKEN) > 25


@pytest.mark.parametrize("rule", ["BED-26", "BED-29", "BED-30", "BED-31", "BED-32", "BED-35"])
def test_botocore_refuses_the_shape_that_the_rules_refuse(rule):
    """The oracle can say no, where a client looks as well: at keys, types and least lengths."""
    bodies = [
        vector["body"]
        for vector in vectors_of("bedrock-converse")
        if vector["rule"] == rule and vector["case"] == "breach"
    ]
    assert bodies
    assert [body for body in bodies if not botocore_report(body)] == []


@pytest.mark.parametrize(
    ("family_of", "model", "name"),
    [
        (gemini_family, "models/gemini-2.5-flash", "gemini-2"),
        (gemini_family, "gemini-3.1-flash-lite-preview", "gemini-3"),
        (gemini_family, "gemini-live-2.5-flash", "gemini-2"),
        (gemini_family, "gemini-flash-latest", "unknown"),
        (gemini_family, None, "unknown"),
        (converse_family, "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-4-5"),
        (converse_family, "anthropic.claude-v2", "claude"),
        (converse_family, "arn:aws:bedrock:us-east-1::foundation-model/amazon.nova-lite-v1:0", "nova"),
        (converse_family, "us.mistral.pixtral-large-2502-v1:0", "mistral"),
        (converse_family, "openai.gpt-oss-120b-1:0", "unknown"),
    ],
)
def test_model_names_lead_to_their_families(family_of, model, name):
    assert family_of(model).name == name
