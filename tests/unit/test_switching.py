"""A session that switches between providers, and a session with several providers.

Each target's request is valid. Reasoning and signatures are sent only to their issuer, and dropping them is recorded.
Nothing else is lost, and a provider that becomes the target again gets its own reasoning unchanged.
"""

import json

import msgspec
import pytest
import stage_runs
from build import call, result, said, user
from reader_results import hard

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.fixes import FIXES
from reknit.pipeline.stages.turns import TurnsStage
from reknit.topics import HISTORY_FIXES, PROVIDER_REQUESTS

MODELS = {
    "anthropic": "claude-sonnet-4-5",
    "openai-responses": "gpt-5-mini",
    "gemini": "gemini-3-pro-preview",
    "bedrock-converse": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    "openai-chat": "deepseek-reasoner",
    "vllm": "deepseek-reasoner",
    "claude-cli": "claude-sonnet-4-5",
    "codex-cli": "gpt-5.1-codex",
    "gemini-cli": "gemini-2.5-flash",
    "copilot-cli": "gpt-5-mini",
}
# Providers that sign reasoning, and the shape of their reasoning.
THOUGHTS = {
    "anthropic": {"type": "thinking", "thinking": "MARK-anthropic", "signature": "c2ln"},
    "openai-responses": {"type": "thinking", "thinking": "MARK-openai-responses", "signature": "Z0FB"},
    "gemini": {"type": "thinking", "thinking": "MARK-gemini", "signature": "Z2Vt"},
    "bedrock-converse": {"type": "thinking", "thinking": "MARK-bedrock-converse", "signature": "YmVk"},
    "openai-chat": {"type": "thinking", "thinking": "MARK-openai-chat"},
}
SIGNATURES = {"anthropic": "c2ln", "openai-responses": "Z0FB", "gemini": "Z2Vt", "bedrock-converse": "YmVk"}
# vLLM implements the chat API: reasoning received through one is sent back through the other.
SHARED = {"vllm": "openai-chat"}
# Fixes caused by a target and not by the switch.
OF_TARGETS = {"signature_skipped", "tools_stubbed"}


def answered(number, provider):
    thought = THOUGHTS[provider] | {"issuer": {"provider": provider, "model": MODELS[provider]}}
    return [
        said(thought, f"MARK-t{number}", call(f"toolu_{number}", "read", n=number)),
        user(result(f"toolu_{number}", f"MARK-r{number}"), f"MARK-u{number}"),
    ]


def history():
    rounds = [message for number, provider in enumerate(THOUGHTS) for message in answered(number, provider)]
    return [{"role": "user", "content": "MARK-q"}, *rounds]


def appended(session, messages):
    for message in messages:
        session.append(msgspec.json.encode(message))
    return session


@pytest.mark.parametrize("target", MODELS)
def test_one_history_for_each_target(target):
    done = normalize({"messages": history(), "model": MODELS[target], "max_tokens": 100}, to=target)
    found = validate(done.body, target, MODELS[target])
    assert [violation for violation in found if violation.severity == "hard"] == []
    text = done.body.decode()
    own = SHARED.get(target, target)
    for provider in THOUGHTS:
        assert (f"MARK-{provider}" in text) == (provider == own)
    for number in range(len(THOUGHTS)):
        assert all(f"MARK-{what}{number}" in text for what in "tru")
    for provider, signature in SIGNATURES.items():
        assert (f'"{signature}"' in text) == (provider == target)


@pytest.mark.parametrize("target", MODELS)
def test_only_foreign_reasoning_is_lost_and_each_loss_has_a_fix(target):
    done = normalize({"messages": history(), "model": MODELS[target]}, to=target)
    lost = [(fix.code, fix.path) for fix in done.fixes if not fix.lossless and FIXES[fix.code].fate == "dropped"]
    foreign = [at for at, provider in enumerate(THOUGHTS) if provider != SHARED.get(target, target)]
    assert {code for code, _ in lost} <= {"thinking_foreign", "thinking_dropped"}
    assert [path for _, path in lost] == [f"messages.{2 * at + 1}.content.0" for at in foreign]
    assert {fix.code for fix in done.fixes if fix.lossless} <= OF_TARGETS


def test_several_targets_in_one_session_are_independent():
    together = appended(Session(list(MODELS)), history())
    for target in MODELS:
        alone = appended(Session([target]), history())
        one, other = together.request(target), alone.request()
        assert (one.body, one.fixes, one.ledger) == (other.body, other.fixes, other.ledger)
        assert hard(one) == []


@pytest.mark.parametrize("first", THOUGHTS)
@pytest.mark.parametrize("second", MODELS)
def test_a_returning_target_gets_its_own_signatures(first, second):
    session = Session([first], model=MODELS[first])
    messages = [{"role": "user", "content": "MARK-q"}, *answered(0, first)]
    appended(session, messages)
    before = session.request()
    assert before.fixes == [fix for fix in before.fixes if fix.code in OF_TARGETS]

    session.configure(targets=[second], model=MODELS[second])
    away = session.request()
    assert hard(away) == []
    writer = second if second in THOUGHTS else first
    appended(session, answered(1, writer))
    assert hard(session.request()) == []

    session.configure(targets=[first], model=MODELS[first])
    back = session.request()
    assert hard(back) == []
    assert f"MARK-{first}" in back.body.decode()
    if first in SIGNATURES:
        assert back.body.decode().count(f'"{SIGNATURES[first]}"') == 1 + (writer == first)
    whole = normalize({"messages": [*messages, *answered(1, writer)], "model": MODELS[first]}, to=first)
    assert (back.body, back.fixes) == (whole.body, whole.fixes)
    if first != second:
        # The previously settled part is the same again.
        assert back.reset == "configured"
        settled = min(before.prefix_bytes, back.prefix_bytes)
        assert back.unjudged[:settled] == before.unjudged[:settled]


def test_reasoning_of_another_model_of_the_provider_is_dropped_and_returns_with_its_model():
    session = appended(Session(["anthropic"], model="claude-sonnet-4-5"), [{"role": "user", "content": "q"}])
    appended(session, answered(0, "anthropic"))
    session.configure(model="claude-opus-4-1")
    assert [fix.code for fix in session.request().fixes] == ["thinking_foreign"]
    session.configure(model="claude-sonnet-4-5")
    assert session.request().fixes == []
    assert "MARK-anthropic" in session.request().body.decode()


def test_a_switch_through_the_topics():
    events = [
        {"type": "session.opened", "targets": ["anthropic"], "model": MODELS["anthropic"], "params": {"max_tokens": 9}},
        *({"type": "turn.appended", "message": message} for message in history()[:3]),
        {"type": "session.opened", "targets": ["gemini"], "model": MODELS["gemini"]},
        *({"type": "turn.appended", "message": message} for message in answered(1, "gemini")),
        {"type": "session.opened", "targets": ["anthropic", "gemini"], "model": MODELS["anthropic"]},
        {"type": "request.wanted"},
    ]
    whole = TurnsStage().process(stage_runs.records(events))
    sent = [
        (dict(output.headers)["target"].decode(), output.value.decode())
        for output in stage_runs.of(whole, PROVIDER_REQUESTS)
    ]
    assert [target for target, _ in sent] == ["anthropic", "anthropic", "gemini", "anthropic", "gemini"]
    shown = [{name for name in THOUGHTS if f"MARK-{name}" in body} for _, body in sent]
    assert shown == [set(), {"anthropic"}, {"gemini"}, {"anthropic"}, set()]
    foreign = [
        (record["code"], record["target"], record["path"])
        for output in stage_runs.of(whole, HISTORY_FIXES)
        if not (record := json.loads(output.value))["lossless"]
    ]
    assert set(foreign) == {
        ("thinking_foreign", "gemini", "messages.1.content.0"),
        ("thinking_foreign", "anthropic", "messages.3.content.0"),
        # The model is now the other provider's, so Gemini's reasoning no longer counts as Gemini's own.
        ("thinking_foreign", "gemini", "messages.3.content.0"),
    }


@pytest.mark.parametrize(
    ("target", "places"),
    [
        ("openai-chat", ["params.generationConfig.topK", "params.generationConfig.thinkingConfig"]),
        ("openai-responses", ["params.generationConfig.topK", "params.generationConfig.thinkingConfig"]),
        ("bedrock-converse", ["params.generationConfig.topK", "params.generationConfig.thinkingConfig"]),
        ("anthropic", ["params.generationConfig.thinkingConfig", "params.generationConfig.temperature"]),
    ],
)
def test_a_parameter_is_named_by_its_input_path(target, places):
    generation = {
        "topK": 3,
        "temperature": 1.5 if target == "anthropic" else 1,
        "thinkingConfig": {"thinkingBudget": 9},
    }
    request = {"contents": [{"role": "user", "parts": [{"text": "q"}]}], "generationConfig": generation}
    assert [fix.path for fix in normalize(msgspec.json.encode(request), to=target).fixes] == places
