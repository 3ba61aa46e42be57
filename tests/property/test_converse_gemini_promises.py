"""The promises over arbitrary histories, for Converse, Gemini and the Copilot command line."""

from __future__ import annotations

import base64
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sdk_types import fault
from strategies import healthy_histories, histories, policies

from pipeline import Session, normalize
from pipeline.fixes import FIXES
from pipeline.testing import Kit

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
REJECTIONS = {"BED-01", "BED-11", "GEM-05", "GEM-09", "COP-02", "COP-05"}


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


def kit(target, model, policy):
    return Kit(target, policy, setting={"model": model} if model else None)


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=120 * SCALE)
@given(messages=own, policy=policies)
def test_what_comes_out_is_valid(target, model, messages, policy):
    done = kit(target, model, policy).valid(messages)
    hard = {violation.rule for violation in done.violations if violation.severity == "hard"}
    if done.body is not None:
        assert hard == set()
    elif policy["tail"] == "reject":
        assert len(hard) == 1
        assert hard <= REJECTIONS
    else:
        # The caller asked for what this model does not take.
        assert policy["tail"] == "prefill"
        assert hard <= {"BED-11", "BED-11b"}


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=100 * SCALE)
@given(messages=own, policy=policies)
def test_each_input_block_has_one_fate_and_each_output_block_a_source(target, model, messages, policy):
    kit(target, model, policy).accounted(messages)


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=60 * SCALE)
@given(messages=own, policy=policies)
def test_whole_and_turn_by_turn_are_the_same_and_what_is_settled_stays(target, model, messages, policy):
    kit(target, model, policy).incremental(messages)


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
    kit(target, model, policy).idempotent(messages)


@pytest.mark.parametrize(("target", "model"), CONVERSE)
@settings(max_examples=100 * SCALE)
@given(messages=own, policy=policies)
def test_the_client_library_takes_every_converse_request(target, model, messages, policy):
    body = normalize(document(messages, model), to=target, policy=policy).body
    assert body is None or fault(target, body, model) == ""


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=60 * SCALE)
@given(messages=own, policy=policies)
def test_rules_step_by_step_are_the_rules_over_the_whole_body(target, model, messages, policy):
    kit(target, model, policy).folded(messages)


@pytest.mark.parametrize(("target", "model"), ASKED)
@settings(max_examples=60 * SCALE)
@given(messages=healthy_histories(), policy=policies)
def test_a_healthy_history_has_no_fix_but_what_the_target_asks_for(target, model, messages, policy):
    wanted = {"tools_stubbed", "assistant_inserted"} if target == "bedrock-converse" else {"signature_skipped"}
    done = kit(target, model, policy | {"strip_tools": False}).healthy(messages, allowed=wanted)
    codes = {fix.code for fix in done.fixes}
    assert "signature_skipped" not in codes or model == "gemini-3-pro-preview"
    assert "assistant_inserted" not in codes or "llama" in model or "mistral" in model


@pytest.mark.parametrize("target", TARGETS)
@given(messages=own)
def test_every_fix_is_in_the_catalogue(target, messages):
    for fix in normalize(document(messages, None), to=target).fixes:
        assert FIXES[fix.code].lossless == fix.lossless
