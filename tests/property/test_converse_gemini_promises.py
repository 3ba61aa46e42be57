"""The promises over arbitrary histories, for Converse, Gemini and the Copilot command line."""

from __future__ import annotations

import base64
import hashlib
import json
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import healthy_histories, histories, policies

from pipeline import Session, normalize, validate
from pipeline.fixes import FIXES
from pipeline.history.readers import read

botocore = pytest.importorskip("botocore.session", reason="the Converse oracle needs botocore")

SCALE = int(os.environ.get("REKNIT_EXAMPLES", "1"))
MODELS = {
    "bedrock-converse": (
        None,
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "us.amazon.nova-pro-v1:0",
        "us.meta.llama3-3-70b-instruct-v1:0",
        "us.mistral.pixtral-large-2502-v1:0",
        "us.deepseek.r1-v1:0",
    ),
    "gemini": (None, "gemini-2.5-flash", "gemini-3-pro-preview"),
    "copilot-cli": (None,),
}
TARGETS = tuple(MODELS)
ASKED = [pytest.param(target, model, id=f"{target}-{model}") for target in TARGETS for model in MODELS[target]]
CONVERSE = [parameter for parameter in ASKED if parameter.values[0] == "bedrock-converse"]
REJECTIONS = {"BED-01", "BED-11", "GEM-05", "GEM-09", "COP-02"}


@st.composite
def own_histories(draw):
    """Histories whose reasoning is the target's own, as often as somebody else's, with media and odd text besides."""
    messages = draw(histories)
    issuer = draw(st.sampled_from(["bedrock-converse", "gemini"]))
    extras = draw(st.lists(st.sampled_from(EXTRAS), max_size=3))
    changed = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = [
                {"issuer": {"provider": issuer}, **block} if "thinking" in block["type"] else block for block in content
            ]
            if message["role"] == "user" and extras:
                content = [*content, extras.pop()]
            message = {**message, "content": content}  # noqa: PLW2901  a copy
        changed.append(message)
    return changed


PDF = base64.b64encode(b"%PDF-1.1").decode()
EXTRAS = (
    {"type": "document", "title": "a/b_c", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}},
    {"type": "document", "title": "a/b_c", "source": {"type": "text", "media_type": "text/plain", "data": "words"}},
    {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}},
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}, "context": "c"},
    {"type": "text", "text": "nul \0 inside"},
    {"type": "text", "text": "cited", "citations": [{"type": "char_location"}]},
    {"type": "tool_result", "tool_use_id": "call_0", "content": [{"type": "text", "text": "see"}, {
        "type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}]},
)  # fmt: skip
own = own_histories()


def document(messages, model):
    return msgspec.json.encode({"messages": messages} | ({"model": model} if model else {}))


def hard(done):
    return [violation for violation in done.violations if violation.severity == "hard"]


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=120 * SCALE)
@given(messages=own, policy=policies)
def test_what_comes_out_is_valid(target, model, messages, policy):
    done = normalize(document(messages, model), to=target, policy=policy)
    if policy.get("tail") == "reject" and hard(done):
        assert [violation.rule for violation in hard(done)] == [hard(done)[0].rule]
        assert hard(done)[0].rule in REJECTIONS
        assert done.body is None
        assert normalize(document(messages, model), to=target, policy=policy | {"tail": "continue"}).body is not None
    elif policy.get("tail") == "prefill" and hard(done):
        # The caller asked for what this model does not take.
        assert {violation.rule for violation in hard(done)} <= {"BED-11", "BED-11b"}
    else:
        assert hard(done) == []
        assert done.body is not None


def related(one, other):
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=100 * SCALE)
@given(messages=own, policy=policies)
def test_each_input_block_has_one_fate_and_each_output_block_a_source(target, model, messages, policy):
    done = normalize(document(messages, model), to=target, policy=policy)
    named = {(fix.code, fix.path) for fix in done.fixes}
    turns = read(msgspec.json.encode(messages)).conversation.turns
    came = [
        path
        for turn in turns
        for path in turn.paths or [f"messages.{turn.index}.content.{at}" for at in range(len(turn.blocks))]
    ]
    seen = [entry for entry in done.ledger if ".content." not in entry.path.partition(".content")[2]]
    assert sorted(entry.path for entry in seen if entry.path) == sorted(came)
    for entry in done.ledger:
        assert (entry.fate == "kept") == (entry.code == "")
        if entry.fate not in {"kept", "synthesised"}:
            assert any(code == entry.code and related(path, entry.path) for code, path in named)
        if entry.fate == "synthesised":
            assert entry.path == ""
            assert any(code == entry.code for code, _ in named)
        assert (entry.fate == "dropped") == (entry.output == "")
    if done.body is None or target == "copilot-cli":
        return
    body = json.loads(done.body)
    written = body["contents"] if target == "gemini" else body["messages"]
    outputs = [entry.output for entry in done.ledger if entry.output.startswith("messages")]
    assert len(set(outputs)) == sum(len(turn["parts" if target == "gemini" else "content"]) for turn in written)


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=60 * SCALE)
@given(messages=own, policy=policies)
def test_whole_and_turn_by_turn_are_the_same(target, model, messages, policy):
    session = Session((target,), policy, model=model)
    before = None
    for count, message in enumerate(messages, start=1):
        session.append(msgspec.json.encode(message))
        step, whole = session.request(), normalize(document(messages[:count], model), to=target, policy=policy)
        assert step.body == whole.body
        assert sorted(step.fixes, key=repr) == sorted(whole.fixes, key=repr)
        assert sorted(step.ledger, key=repr) == sorted(whole.ledger, key=repr)
        assert step.ids == whole.ids
        assert step.violations == whole.violations
        assert step.sha256 == whole.sha256 == hashlib.sha256(step.unjudged).hexdigest()
        if before is not None and before.prefix_bytes and step.prefix_bytes:
            shared = min(before.prefix_bytes, step.prefix_bytes)
            assert step.unjudged[:shared] == before.unjudged[:shared]
            assert step.prefix_bytes >= before.prefix_bytes
        before = step


@settings(max_examples=80 * SCALE)
@given(messages=own, policy=policies, data=st.data())
def test_a_session_goes_on_from_its_records(messages, policy, data):
    session = Session(TARGETS, policy)
    segments = []
    for message in messages:
        session.append(message)
        if data.draw(st.booleans()):
            segments += session.take_segments(flush=data.draw(st.booleans()))
            session = Session.load(session.head(), [record for _, record in segments])
    for target in TARGETS:
        resumed, whole = session.request(target), normalize(document(messages, None), to=target, policy=policy)
        assert resumed.unjudged == whole.unjudged
        assert sorted(resumed.fixes, key=repr) == sorted(whole.fixes, key=repr)
        assert sorted(resumed.ledger, key=repr) == sorted(whole.ledger, key=repr)


@pytest.mark.parametrize(("target", "model"), CONVERSE)
@settings(max_examples=120 * SCALE)
@given(messages=own, policy=policies)
def test_a_converse_request_mended_again_is_the_same_without_a_fix(target, model, messages, policy):
    once = normalize(document(messages, model), to=target, policy=policy)
    if once.body is None:
        return
    again = {**msgspec.json.decode(once.body, type=dict[str, msgspec.Raw])} | ({"model": model} if model else {})
    twice = normalize(msgspec.json.encode(again), to=target, source="bedrock-converse", policy=policy)
    assert twice.fixes == []
    assert twice.body == once.body


CLIENT = botocore.get_session().get_service_model("bedrock-runtime").operation_model("Converse").input_shape


def with_bytes(shape, value):
    """The JSON of a request as the client library takes it: blobs are bytes."""
    if shape.type_name == "blob":
        return base64.b64decode(value, validate=True)
    if shape.type_name == "list":
        return [with_bytes(shape.member, item) for item in value]
    if shape.type_name == "structure" and not getattr(shape, "is_document_type", False):
        return {
            key: with_bytes(shape.members[key], item) if key in shape.members else item for key, item in value.items()
        }
    return value


@pytest.mark.parametrize(("target", "model"), CONVERSE)
@settings(max_examples=100 * SCALE)
@given(messages=own, policy=policies)
def test_the_client_library_takes_every_converse_request(target, model, messages, policy):
    from botocore.validate import ParamValidator

    done = normalize(document(messages, model), to=target, policy=policy)
    if done.body is None:
        return
    params = with_bytes(CLIENT, {"modelId": model or "m", **json.loads(done.body)})
    assert ParamValidator().validate(params, CLIENT).generate_report() == ""


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=60 * SCALE)
@given(messages=own, policy=policies)
def test_rules_step_by_step_are_the_rules_over_the_whole_body(target, model, messages, policy):
    session = Session((target,), policy, model=model)
    for message in messages:
        session.append(message)
        session.request()
    done = session.request()
    if done.body and policy.get("tail") != "keep":
        assert sorted(done.violations, key=repr) == sorted(validate(done.body, target, model), key=repr)


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=60 * SCALE)
@given(messages=healthy_histories(), policy=policies)
def test_a_healthy_history_has_no_fix_but_what_the_target_asks_for(target, model, messages, policy):
    done = normalize(document(messages, model), to=target, policy=policy | {"strip_tools": False})
    wanted = {"tools_stubbed", "assistant_inserted"} if target == "bedrock-converse" else {"signature_skipped"}
    codes = {fix.code for fix in done.fixes}
    assert codes <= wanted
    assert "signature_skipped" not in codes or model == "gemini-3-pro-preview"
    assert "assistant_inserted" not in codes or "llama" in model or "mistral" in model


@pytest.mark.parametrize("target", TARGETS)
@given(messages=own)
def test_every_fix_is_in_the_catalogue(target, messages):
    for fix in normalize(document(messages, None), to=target).fixes:
        assert FIXES[fix.code].lossless == fix.lossless
