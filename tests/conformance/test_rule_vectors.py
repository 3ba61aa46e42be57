"""Each rule against its vectors: violations, with their words, and near misses.

A vector holds the judged input: a ``body``, ``raw`` text, a ``line`` or a ``prompt``. One of a ``rule`` has that rule's
violation (a ``breach``), or none (a ``near`` miss); one with ``violations`` names all violations. ``pad`` repeats a
prompt; in a body the string ``@pad`` represents N characters, of an image's base64 or of text, and an element of a list
may be repeated as in the examples of ``explain``. ``whole_only`` marks input without a list of messages to fold.
"""

import base64
import json

import msgspec
import pytest
from reader_results import vectors

from reknit.pipeline.explain import written_out
from reknit.pipeline.registry import TARGETS
from reknit.pipeline.rules.base import Violation
from reknit.pipeline.validation import validate

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\0\0\0\0").decode()
# Rules of bodies that are not objects, which have nothing to fold.
NO_OBJECT = {"GEM-17", "BED-33"}


def vectors_of(target):
    return vectors(f"{target.replace('-', '_')}_rules")


def text_of(vector):
    if "prompt" in vector:
        return vector["prompt"].encode("latin-1" if vector.get("raw") else "utf-8") * vector.get("pad", 1)
    body = vector.get("raw", vector.get("line", written_out(vector.get("body"))))
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    if "pad" in vector:
        stem = PNG if '"image"' in text else "a"
        text = text.replace("@pad", stem + "A" * (vector["pad"] - len(stem)))
    return text.encode("utf-8", "surrogatepass")


def fold(body, target):
    """Judge a body message by message; where there are any, they are its last key."""
    rules = TARGETS[target].rules
    text = body.decode("utf-8", "surrogatepass") if hasattr(rules, "key") else ""
    head, listed, rest = text.partition(f'"{getattr(rules, "key", "")}":[')
    if not listed:
        state, found = rules.judge_head(body)
        return found + rules.judge_end(state)
    state, found = rules.judge_head((head.removesuffix(",") + "}").encode("utf-8", "surrogatepass"))
    decoder = json.JSONDecoder()
    at = 0
    while rest[at] != "]":
        _, end = decoder.raw_decode(rest, at)
        state, more = rules.judge_messages(state, rest[at:end].encode("utf-8", "surrogatepass"))
        found += more
        at = end + (rest[end] == ",")
    return found + rules.judge_end(state)


def check(found, vector):
    if "violations" in vector:
        assert sorted(map(str, found)) == sorted(map(str, msgspec.convert(vector["violations"], list[Violation])))
        return
    reported = [violation for violation in found if violation.rule == vector["rule"]]
    if vector["case"] == "near":
        assert reported == []
    else:
        assert Violation(vector["rule"], vector["path"], vector["message"], vector["severity"]) in reported


def has_list(target, vector):
    body = vector.get("body")
    if target != "cascade":
        return not vector.get("whole_only") and vector.get("rule") not in NO_OBJECT
    return isinstance(body, dict) and isinstance(body.get("messages"), list) and [*body][-1] == "messages"


VECTORS = [
    pytest.param(target, vector, id=f"{target}-{vector.get('rule', vector.get('what', at))}-{vector.get('case', '')}")
    for target in TARGETS
    for at, vector in enumerate(vectors_of(target))
]


@pytest.mark.parametrize(("target", "vector"), VECTORS)
def test_whole_body(target, vector):
    check(validate(text_of(vector), target), vector)
    if "violations" in vector:
        assert validate(text_of(vector), target) == msgspec.convert(vector["violations"], list[Violation])


@pytest.mark.parametrize(("target", "vector"), [param for param in VECTORS if has_list(*param.values)])
def test_message_by_message(target, vector):
    found = fold(text_of(vector), target)
    check(found, vector)
    assert sorted(map(str, found)) == sorted(map(str, validate(text_of(vector), target)))


@pytest.mark.parametrize("target", TARGETS)
def test_a_near_miss_breaks_nothing_hard(target):
    """A near miss is a request that the provider takes; were it broken elsewhere, it would prove little."""
    near = [vector for vector in vectors_of(target) if vector.get("case") == "near" or vector.get("violations") == []]
    found = [(vector, violation) for vector in near for violation in validate(text_of(vector), target)]
    assert len(near) >= 4
    assert [pair for pair in found if pair[1].severity == "hard"] == []


@pytest.mark.parametrize(
    ("target", "rule", "by_model"),
    [
        ("gemini", "GEM-04", {"gemini-3-pro": ["hard"], "gemini-2.0-flash": [], "other": ["model"]}),
        ("bedrock-converse", "BED-24", {"anthropic.claude-x": ["hard"], "amazon.nova-lite-v1:0": [], "o": ["model"]}),
    ],
)
def test_the_model_given_wins_over_the_model_named(target, rule, by_model):
    """A rule of one model family is not applied to another, and for an unknown model it has severity ``model``."""
    body = next(vector["body"] for vector in vectors_of(target) if vector["rule"] == rule)
    for model, severities in by_model.items():
        assert [found.severity for found in validate(body, target, model) if found.rule == rule] == severities


@pytest.mark.parametrize(("target", "known"), [("openai-chat", "gpt-5-mini"), ("vllm", "Qwen/Qwen3.5-9B")])
def test_a_known_model_has_a_rule_or_has_it_not(target, known):
    unknown = [vector for vector in vectors_of(target) if vector.get("severity") == "model"]
    found = [violation for vector in unknown for violation in validate(text_of(vector), target, known)]
    assert unknown
    assert [violation for violation in found if violation.severity == "model"] == []


def test_a_model_given_with_the_body_counts():
    body = {"messages": [{"role": "user", "content": "q"}]}
    assert [found.rule for found in validate(body, "cascade")] == ["CAS-08"]
    assert validate(body, "cascade", "claude-opus-4-7") == []


def test_a_long_line_is_quoted_in_part():
    (found,) = validate("x" * 1000 + "\n", "claude-cli")
    assert found.message.startswith("Error parsing streaming input line: " + "x" * 200 + "…: ")


@pytest.mark.parametrize(("target", "vector"), [param for param in VECTORS if param.values[0].endswith("-cli")])
def test_the_fold_of_a_text_says_it_all_at_the_start(target, vector):
    rules, text = TARGETS[target].rules, text_of(vector)
    state, found = rules.judge_head(text)
    assert found == validate(text, target)
    assert rules.judge_messages(state, b"{}") == (state, [])
    assert rules.judge_end(state) == []


def botocore_report(body):
    """Return the errors of botocore's client for a body; bytes are base64 on the wire, not for clients."""
    session = pytest.importorskip("botocore.session", reason="botocore is a development dependency")
    from botocore.validate import ParamValidator

    def as_client(value, name=""):
        if isinstance(value, dict):
            return {key: as_client(inner, key) for key, inner in value.items()}
        if isinstance(value, list):
            return [as_client(inner) for inner in value]
        return base64.b64decode(value) if name in ("bytes", "redactedContent") and isinstance(value, str) else value

    model = session.get_session().get_service_model("bedrock-runtime").operation_model("Converse")
    return ParamValidator().validate(as_client(body), model.input_shape).generate_report()


TAKEN = [
    pytest.param(written_out(vector["body"]), id=vector.get("what") or f"{vector['rule']}-{vector['case']}")
    for vector in vectors_of("bedrock-converse")
    if "body" in vector and not validate(written_out(vector["body"]), "bedrock-converse")
]


@pytest.mark.parametrize("body", TAKEN)
def test_botocore_takes_the_shape_of_what_the_rules_take(body):
    assert len(TAKEN) > 25
    assert botocore_report(body) == ""


@pytest.mark.parametrize("rule", ["BED-26", "BED-29", "BED-30", "BED-31", "BED-32", "BED-35"])
def test_botocore_refuses_the_shape_that_the_rules_refuse(rule):
    """The oracle can say no, where a client looks as well: at keys, types and least lengths."""
    listed = vectors_of("bedrock-converse")
    bodies = [vector["body"] for vector in listed if vector.get("rule") == rule and vector["case"] == "breach"]
    assert bodies
    assert [body for body in bodies if not botocore_report(body)] == []
