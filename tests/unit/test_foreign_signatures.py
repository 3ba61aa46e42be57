"""Reasoning with the signature of another issuer, on each target that verifies signatures.

The reports are those named with each form in ``reknit.pipeline.targets.signatures``; Claude's, Gemini's and OpenAI's
own are the beginnings of recorded ones.
"""

import json

import msgspec
import pytest
import stage_runs
from build import call, result, said, session_of, user
from hypothesis import given, settings
from hypothesis import strategies as st

from reknit.pipeline import Session, normalize, validate
from reknit.pipeline.config import ConfigError, load_config
from reknit.pipeline.errors import PolicyError
from reknit.pipeline.policy import Endpoint, Policy
from reknit.pipeline.providers.anthropic.rules.signatures import is_of_another_issuer, is_of_vertex
from reknit.pipeline.session.arguments import policy_from
from reknit.pipeline.stages.defaults import Defaults
from reknit.pipeline.stages.turns import TurnsStage
from reknit.pipeline.targets import is_same_model
from reknit.pipeline.targets.signatures import CHECKING, FORMS, form_of, is_foreign, issuer_of

CLAUDE = "ErUBCkYIBBgCIkAOLwDXty2UNgzsRPd4O0tNxqhaxPqqLw9isc2bDqyVS7Y8"
SIGNATURES = {
    "claude": CLAUDE,
    "claude, 2026": "CAISzQIKhwEIEBgCKkA6UEt5UdRt/KfkeHOQbHxpolz7p2iTFeyqGfa/4OkD",
    "claude, redacted": "EvgFCkYYAiJADi8A17ctlDYM7ET3eDtLTcaoWsT6qi8PYrHN",
    "vertex": f"claude#{CLAUDE}",
    "prefixed": "gemini#EswFCskFAb4+9vu5+eCedpmcjHHK+yjyrSAIGVBHmE2rQWc0",
    "prefixed, gpt": "gpt#gAAAAABo1x2VqQ8yJk3nT5bL0wZc",
    "uuid": "91cfbb94-554b-4136-8e21-fa02280d56ed",
    "hex, 24": "9f3c1a77b2e04d55aa10c3de",
    "hex, 64": "7c" * 32,
    "encrypted": "gAAAAABo1x2VqQ8yJk3nT5bL0wZcR7uHd2sKfPpXm4vQ9aYtE1iJgB6lNzC8oW5h",
    "placeholder": "skip_thought_signature_validator",
    "placeholder, base64": "Y29udGV4dF9lbmdpbmVlcmluZ19pc190aGVfd2F5X3RvX2dv",
    "gemini": "CiQBcsjafM1yzrSyo+fPAiFugScvwvVMFP2fPdQMuXoIBl/I+YsKbQFyyNp8",
    "gemini, in a field": "EswFCskFAb4+9vu5+eCedpmcjHHK+yjyrSAIGVBHmE2rQWc0",
    "gemini, 3": "AY89a18a8/Loc2wl5oft+F3qHoU4VPX0L9ljRtKxT3aB",
}
# Made up or replaced by those who recorded them, or of a form that two issuers share: nobody's.
UNKNOWN = (
    "c2ln",
    "sig_abc123",
    "signature_REDACTED_1",
    "ZWxpZGVkOjU0MjRmZmU4ZjI1MGU1NWJiZmYwYWZhZTc5OGEwY2VkNGE5ZDVl",
    "EqgCCqUCCAESoAIBDDnWx4CC5x8yQ2mLrW9kTzHnVb0",
    "Encrypted",
    "rsn_5ZVrif4J0bXIqmWdledj",
    "",
    "E",
    "gAAA",
    "ÄÖÜ",
    "91cfbb94",
)
NATIVE = {
    "anthropic": {"claude", "claude, 2026", "claude, redacted", "vertex"},
    "deepseek": {"uuid"},
    "glm": {"hex, 24", "hex, 64"},
    "google": {"placeholder", "placeholder, base64", "gemini", "gemini, in a field", "gemini, 3"},
    "minimax": {"hex, 24", "hex, 64"},
    "openai": {"encrypted"},
}
FOREIGN_TO_CLAUDE = sorted(SIGNATURES.keys() - NATIVE["anthropic"])
SONNET = "claude-sonnet-4-5"
ON_BEDROCK = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
REMOVED = "reasoning_foreign"


def thought(signature, words="hm"):
    return {"type": "thinking", "thinking": words, "signature": signature}


def made(document, to="anthropic", **policy):
    """Return the messages of a request, and the code and place of each fix."""
    done = normalize(document, to=to, policy=policy)
    assert done.body is not None, done.violations
    body = json.loads(done.body)
    root = next(name for name in ("messages", "contents", "input") if name in body)
    return body[root], [(fix.code, fix.path) for fix in done.fixes]


def document(*messages, model=SONNET, **head):
    return {"model": model, "max_tokens": 9000, **head, "messages": list(messages)}


def spoken(signature, model=SONNET):
    return document(user("q"), said(thought(signature), "a"), user("b"), model=model)


# The forms.


@pytest.mark.parametrize("name", SIGNATURES)
def test_each_form_is_recognised(name):
    assert form_of(SIGNATURES[name]).name == name.partition(",")[0]


@pytest.mark.parametrize("signature", UNKNOWN)
def test_any_other_signature_may_be_anyones(signature):
    assert form_of(signature) is None
    assert not any(is_foreign(signature, Endpoint(issuer=issuer)) for issuer in CHECKING)


def test_each_form_has_a_source_and_a_name_of_its_own():
    assert len({form.name for form in FORMS}) == len(FORMS)
    assert all(form.source for form in FORMS)


@pytest.mark.parametrize("issuer", NATIVE)
@pytest.mark.parametrize("name", SIGNATURES)
def test_a_signature_is_foreign_where_signatures_are_verified_and_its_form_is_not_native(name, issuer):
    expected = issuer in CHECKING and name not in NATIVE[issuer]
    assert is_foreign(SIGNATURES[name], Endpoint(issuer=issuer)) == expected


@pytest.mark.parametrize(
    ("platform", "foreign"), [("", False), ("vertex", False), ("anthropic", True), ("bedrock", True)]
)
def test_vertex_has_a_form_of_its_own(platform, foreign):
    assert is_foreign(SIGNATURES["vertex"], Endpoint(platform, "anthropic")) == foreign
    assert not is_foreign(CLAUDE, Endpoint(platform, "anthropic"))


begun = st.from_regex(r"(?:E|C|AY8|gAAAA|claude#|gemini#)[A-Za-z0-9+/_-]{0,40}={0,2}", fullmatch=True)


@settings(max_examples=300)
@given(signature=st.one_of(st.text(), begun, st.builds("AY8".__add__, st.text())))
def test_any_text_is_looked_at_and_the_rules_agree(signature):
    form = form_of(signature)
    of_claude = form is not None and "anthropic" in form.issuers
    # The two tables share no code; both know the same forms. The beginning of a short one may say nothing.
    if len(signature) >= 16:
        assert is_of_another_issuer(signature) == (form is not None and not of_claude)
    assert is_of_vertex(signature) == (form is not None and form.name == "vertex")


@pytest.mark.parametrize(
    ("model", "issuer"),
    [
        (SONNET, "anthropic"),
        (ON_BEDROCK, "anthropic"),
        ("anthropic/claude-opus-4.7", "anthropic"),
        ("gemini-claude-sonnet-4-5-thinking", "anthropic"),
        ("claude-fable-5-1", "anthropic"),
        ("deepseek-v4-pro", "deepseek"),
        ("us.deepseek.r1-v1:0", "deepseek"),
        ("zai/glm-5", "glm"),
        ("MiniMax-M3", "minimax"),
        ("kimi-k2-thinking", "moonshot"),
        ("gemini-3-pro-preview", "google"),
        ("gpt-5.1-codex", "openai"),
        ("azure/gpt-5-mini", "openai"),
        ("o3-mini", "openai"),
        ("openai/gpt-oss-120b", ""),
        ("acme-foo1-large", ""),
        ("grok-4", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_the_issuer_of_a_model_by_its_name(model, issuer):
    assert issuer_of(model) == issuer


# Each target.


@pytest.mark.parametrize("name", FOREIGN_TO_CLAUDE)
def test_anthropic_foreign_reasoning_is_left_out(name):
    messages, fixes = made(spoken(SIGNATURES[name]))
    assert messages == [user("q"), said("a"), user("b")]
    assert fixes == [(REMOVED, "messages.1.content.0")]


@pytest.mark.parametrize("name", FOREIGN_TO_CLAUDE)
def test_anthropic_foreign_redacted_reasoning_is_left_out(name):
    block = {"type": "redacted_thinking", "data": SIGNATURES[name]}
    messages, fixes = made(document(user("q"), said(block, "a"), user("b")))
    assert messages == [user("q"), said("a"), user("b")]
    assert fixes == [(REMOVED, "messages.1.content.0")]


@pytest.mark.parametrize(
    "signature", [*(SIGNATURES[name] for name in sorted(NATIVE["anthropic"])), *filter(None, UNKNOWN)]
)
def test_anthropic_a_history_without_foreign_reasoning_stays_byte_identical(signature):
    given = msgspec.json.encode(spoken(signature))
    done = normalize(given)
    assert (done.body, done.fixes) == (given, [])


@pytest.mark.parametrize("model", [None, "acme-large", "deepseek-v4-pro", "glm-5", "kimi-k2-thinking"])
@pytest.mark.parametrize("name", SIGNATURES)
def test_anthropic_an_endpoint_that_is_not_known_to_verify_gets_every_form(model, name):
    given = spoken(SIGNATURES[name], model)
    if model is None:
        del given["model"]
    messages, fixes = made(given)
    assert (messages, fixes) == (given["messages"], [])


def test_anthropic_several_calls_of_one_history():
    loop = [
        user("q"),
        said(thought(SIGNATURES["uuid"]), call("a")),
        user(result("a")),
        said(thought(CLAUDE), "now", call("b")),
        user(result("b"), "next"),
        said(thought(SIGNATURES["hex, 24"]), "done"),
        user("b"),
    ]
    messages, fixes = made(document(*loop, tools=[{"name": "ls", "input_schema": {"type": "object"}}]))
    assert messages == [loop[0], said(call("a")), loop[2], loop[3], loop[4], said("done"), loop[6]]
    assert fixes == [(REMOVED, "messages.1.content.0"), (REMOVED, "messages.5.content.0")]


def test_anthropic_a_turn_loses_all_of_its_reasoning():
    redacted = {"type": "redacted_thinking", "data": SIGNATURES["claude, redacted"]}
    turn = said(thought(CLAUDE), redacted, thought(SIGNATURES["encrypted"]), "a")
    messages, fixes = made(document(user("q"), turn, user("b")))
    assert messages[1] == said("a")
    assert fixes == [
        ("thinking_of_changed_turn", "messages.1.content.0"),
        ("thinking_of_changed_turn", "messages.1.content.1"),
        (REMOVED, "messages.1.content.2"),
    ]


def test_anthropic_a_loop_whose_first_answer_loses_its_reasoning_continues_without_thinking():
    """The report of can1357/oh-my-pi#12006, in a tool loop: Claude, GLM, Claude."""
    given = document(
        user("q"),
        said(thought(SIGNATURES["hex, 24"]), call("a")),
        user(result("a")),
        thinking={"type": "enabled", "budget_tokens": 2048},
        tools=[{"name": "ls", "input_schema": {"type": "object"}}],
    )
    done = normalize(given)
    body = json.loads(done.body)
    assert body["messages"] == [user("q"), said(call("a")), user(result("a"))]
    assert "thinking" not in body
    assert [fix.code for fix in done.fixes] == [REMOVED, "thinking_disabled"]
    assert validate(done.body, "anthropic") == []


def test_anthropic_an_answer_of_nothing_but_foreign_reasoning():
    messages, fixes = made(document(user("q"), said(thought(SIGNATURES["uuid"])), user("b")))
    assert messages == [user("q"), user("b")]
    assert fixes == [("reasoning_alone", "messages.1.content.0")]


def converse(signature, model=ON_BEDROCK):
    return {
        "modelId": model,
        "messages": [
            {"role": "user", "content": [{"text": "q"}]},
            {
                "role": "assistant",
                "content": [
                    {"reasoningContent": {"reasoningText": {"text": "hm", "signature": signature}}},
                    {"text": "a"},
                ],
            },
            {"role": "user", "content": [{"text": "b"}]},
        ],
    }


@pytest.mark.parametrize("name", [*FOREIGN_TO_CLAUDE, "vertex"])
def test_converse_foreign_reasoning_is_left_out(name):
    given = converse(SIGNATURES[name])
    assert [each.rule for each in validate(given, "bedrock-converse") if each.severity == "hard"] == ["BED-18b"]
    messages, fixes = made(given, "bedrock-converse")
    assert messages == [given["messages"][0], {"role": "assistant", "content": [{"text": "a"}]}, given["messages"][2]]
    assert fixes == [(REMOVED, "messages.1.content.0")]


@pytest.mark.parametrize("signature", [CLAUDE, SIGNATURES["claude, 2026"], *filter(None, UNKNOWN)])
def test_converse_a_history_without_foreign_reasoning_is_kept(signature):
    given = converse(signature)
    assert made(given, "bedrock-converse") == (given["messages"], [])


@pytest.mark.parametrize("name", SIGNATURES)
def test_converse_a_model_of_another_vendor_gets_every_form(name):
    given = converse(SIGNATURES[name], "us.amazon.nova-pro-v1:0")
    assert made(given, "bedrock-converse") == (given["messages"], [])


def contents(signature, model="gemini-3-pro-preview"):
    seen = {"functionCall": {"name": "ls", "args": {}}, "thoughtSignature": signature}
    return {
        "model": model,
        "contents": [
            {"role": "user", "parts": [{"text": "q"}]},
            {"role": "model", "parts": [seen]},
            {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"output": "files"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "ls"}]}],
    }


@pytest.mark.parametrize("name", sorted(SIGNATURES.keys() - NATIVE["google"]))
def test_gemini_a_foreign_signature_becomes_the_placeholder(name):
    """``Corrupted thought signature.``; Claude's by router-for-me/CLIProxyAPIPlus#178."""
    given = contents(SIGNATURES[name])
    messages, fixes = made(given, "gemini")
    assert messages == contents("skip_thought_signature_validator")["contents"]
    assert fixes == [(REMOVED, "contents.1.parts.0.thoughtSignature"), ("signature_skipped", "contents.1.parts.0")]


@pytest.mark.parametrize("signature", [SIGNATURES["gemini"], SIGNATURES["gemini, 3"], *filter(None, UNKNOWN)])
def test_gemini_other_signatures_are_kept(signature):
    given = contents(signature)
    assert made(given, "gemini") == (given["contents"], [])


def items(seal, model="gpt-5-mini"):
    return {
        "model": model,
        "store": False,
        "input": [
            {"type": "message", "role": "user", "content": "q"},
            {"type": "reasoning", "summary": [], "encrypted_content": seal},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "message", "role": "user", "content": "b"},
        ],
    }


@pytest.mark.parametrize("name", sorted(SIGNATURES.keys() - NATIVE["openai"]))
def test_responses_foreign_reasoning_is_left_out(name):
    given = items(SIGNATURES[name])
    messages, fixes = made(given, "openai-responses")
    assert messages == [given["input"][0], {"type": "message", "role": "assistant", "content": "a"}, given["input"][3]]
    assert fixes == [(REMOVED, "input.1")]


@pytest.mark.parametrize("model", ["gpt-5-mini", "grok-4", "openai/gpt-oss-120b"])
def test_responses_own_reasoning_is_kept(model):
    given = items(SIGNATURES["encrypted"], model)
    messages, fixes = made(given, "openai-responses")
    assert messages[1]["encrypted_content"] == SIGNATURES["encrypted"]
    assert fixes == []


# The policy.


@pytest.mark.parametrize("platform", ["deepseek", "glm", "moonshot"])
@pytest.mark.parametrize("name", SIGNATURES)
def test_a_platform_that_does_not_verify_gets_every_form_whatever_it_calls_the_model(platform, name):
    given = spoken(SIGNATURES[name])
    assert made(given, endpoints={"anthropic": {"platform": platform}}) == (given["messages"], [])


@pytest.mark.parametrize("name", SIGNATURES)
def test_minimax_verifies_signatures(name):
    native = name in NATIVE["minimax"]
    _, fixes = made(spoken(SIGNATURES[name]), endpoints={"anthropic": {"platform": "minimax"}})
    assert fixes == ([] if native else [(REMOVED, "messages.1.content.0")])


@pytest.mark.parametrize(
    ("endpoint", "signature", "kept"),
    [
        ({"issuer": "anthropic"}, "uuid", False),
        ({"issuer": "anthropic"}, "claude", True),
        ({"platform": "vertex", "issuer": "anthropic"}, "vertex", True),
        ({"platform": "anthropic", "issuer": "anthropic"}, "vertex", False),
        ({"platform": "azure"}, "uuid", True),
        ({}, "uuid", True),
    ],
)
def test_an_endpoint_is_stated_where_no_name_tells(endpoint, signature, kept):
    _, fixes = made(spoken(SIGNATURES[signature], "acme-large"), endpoints={"anthropic": endpoint})
    assert fixes == ([] if kept else [(REMOVED, "messages.1.content.0")])


def test_the_endpoint_of_another_target_says_nothing():
    _, fixes = made(spoken(SIGNATURES["uuid"]), endpoints={"gemini": {"platform": "deepseek"}})
    assert fixes == [(REMOVED, "messages.1.content.0")]


def test_reasoning_is_kept_by_policy():
    given = spoken(SIGNATURES["uuid"])
    assert made(given, reasoning="keep") == (given["messages"], [])


def test_the_repair_is_observed_by_policy():
    given = spoken(SIGNATURES["uuid"])
    done = normalize(given, policy={"mend": {REMOVED: "observe"}})
    assert json.loads(done.body)["messages"] == given["messages"]
    assert [(fix.code, fix.observed) for fix in done.fixes] == [(REMOVED, True)]


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"endpoints": {"nobody": {}}}, "policy.endpoints.nobody"),
        ({"endpoints": "vertex"}, "policy.endpoints"),
        ({"endpoints": {"anthropic": {"platform": "nowhere"}}}, ""),
        ({"endpoints": {"anthropic": {"place": "vertex"}}}, ""),
        ({"endpoints.anthropic.platform.x": "vertex"}, "policy"),
        ({"reasoning": "some"}, "policy.reasoning"),
    ],
)
def test_an_endpoint_that_does_not_exist_is_rejected(given, path):
    with pytest.raises(PolicyError) as raised:
        policy_from(given)
    assert (raised.value.code, raised.value.path) == ("policy", path)


@pytest.mark.parametrize(
    ("toml", "env"),
    [
        ('[session.policy.endpoints.anthropic]\nplatform = "vertex"\nissuer = "anthropic"\n', {}),
        ("", {"REKNIT_SESSION__POLICY__ENDPOINTS": '{"anthropic": {"platform": "vertex", "issuer": "anthropic"}}'}),
    ],
)
def test_an_endpoint_is_configured(tmp_path, toml, env):
    file = tmp_path / "reknit.toml"
    file.write_text(toml)
    assert load_config(file, env).session.policy.endpoints == {"anthropic": Endpoint("vertex", "anthropic")}


def test_a_platform_that_does_not_exist_is_rejected_in_the_configuration():
    with pytest.raises(ConfigError) as raised:
        load_config(env={"REKNIT_SESSION__POLICY__ENDPOINTS": '{"anthropic": {"platform": "nowhere"}}'})
    assert raised.value.path == "session.policy.endpoints"


def test_an_endpoint_has_dotted_names():
    names = {"endpoints.anthropic.platform": "vertex", "endpoints.anthropic.issuer": "anthropic"}
    assert policy_from(names) == Policy(endpoints={"anthropic": Endpoint("vertex", "anthropic")})


# What a history states of the author.

STATED = {
    "an API's answer": {"model": "deepseek-v4-pro", "stop_reason": "end_turn"},
    "LangChain": {"response_metadata": {"model_name": "claude-opus-4-1", "model_provider": "anthropic"}},
    "LangChain, earlier": {"response_metadata": {"model": "claude-opus-4-1", "usage": {"input_tokens": 1}}},
    "Pydantic AI": {"model_name": "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "provider_name": "bedrock"},
}
STATED_THE_SAME = (
    {"model": "claude-sonnet-4-5-20250929"},
    {"model": "anthropic/claude-4.5-sonnet"},
    {"response_metadata": {"model_name": SONNET}},
    {"response_metadata": {"stop_reason": "end_turn"}},
    {"response_metadata": "none"},
    {"model": 7},
    {"model": ""},
    {"model_name": None},
)


def stating(author, *blocks, model=SONNET):
    return document(user("q"), said(*(blocks or (thought(CLAUDE), "a")), **author), user("b"), model=model)


def reasons_of(fixes):
    return [fix for fix in fixes if not fix[0].startswith("field_")]


@pytest.mark.parametrize("name", STATED)
def test_reasoning_whose_author_is_stated_as_another_model_is_left_out(name):
    messages, fixes = made(stating(STATED[name]))
    assert messages == [user("q"), said("a"), user("b")]
    assert reasons_of(fixes) == [("thinking_foreign", "messages.1.content.0")]


@pytest.mark.parametrize("name", STATED)
def test_redacted_reasoning_whose_author_is_stated_is_left_out(name):
    block = {"type": "redacted_thinking", "data": SIGNATURES["claude, redacted"]}
    messages, fixes = made(stating(STATED[name], block, "a"))
    assert messages == [user("q"), said("a"), user("b")]
    assert reasons_of(fixes) == [("thinking_foreign", "messages.1.content.0")]


@pytest.mark.parametrize("author", STATED_THE_SAME)
def test_reasoning_whose_author_is_this_model_or_not_stated_is_kept(author):
    messages, fixes = made(stating(author))
    assert messages == [user("q"), said(thought(CLAUDE), "a"), user("b")]
    assert reasons_of(fixes) == []


def test_a_stated_author_of_a_block_counts_before_that_of_its_message():
    issued = thought(CLAUDE) | {"issuer": {"provider": "anthropic", "model": SONNET}}
    messages, fixes = made(stating(STATED["an API's answer"], issued, "a"))
    assert messages[1] == said(thought(CLAUDE), "a")
    assert reasons_of(fixes) == []


def test_the_author_is_stated_turn_by_turn_too():
    given = stating(STATED["LangChain"])
    session = Session(model=SONNET)
    for message in given["messages"]:
        session.append(message)
    restored = Session.load(session.head(), [])
    assert session.request().body == restored.request().body
    assert json.loads(restored.request().body)["messages"] == [user("q"), said("a"), user("b")]


@pytest.mark.parametrize(
    ("author", "model", "endpoint", "kept"),
    [
        ("claude-opus-4-7", "claude-fable-5-1", {}, True),
        ("claude-fable-5-1", "claude-opus-5-5", {}, True),
        ("claude-fable-5-1", "claude-opus-5", {}, False),
        ("claude-opus-4-7", "claude-sonnet-4-5", {}, False),
        ("deepseek-v4-pro", "claude-fable-5-1", {}, False),
        ("claude-opus-4-7", "deepseek-v4-pro", {}, True),
        ("claude-opus-4-7", "claude-sonnet-4-5", {"platform": "deepseek"}, True),
        ("claude-opus-4-7", "kimi-k2-thinking", {}, True),
        ("claude-opus-4-7", "MiniMax-M3", {}, False),
        ("claude-opus-4-7", "acme-large", {}, True),
        ("claude-opus-4-7", "acme-large", {"issuer": "anthropic"}, False),
    ],
)
@pytest.mark.parametrize("reasoning", ["keep", "same_issuer"])
def test_which_reasoning_crosses_from_one_model_to_another(author, model, endpoint, kept, reasoning):
    messages, _ = made(stating({"model": author}, model=model), endpoints={"anthropic": endpoint}, reasoning=reasoning)
    assert ("thinking" in json.dumps(messages[1])) == (kept or reasoning == "keep")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (SONNET, "claude-sonnet-4-5-20250929", True),
        (SONNET, "anthropic/claude-sonnet-4.5", True),
        (SONNET, "claude-sonnet-4-5@20250929", True),
        (ON_BEDROCK, "global.anthropic.claude-sonnet-4-5-20250929-v1:0", True),
        (ON_BEDROCK, SONNET, False),
        (SONNET, "claude-opus-4-5", False),
        ("claude-sonnet-4-5", "claude-sonnet-4-6", False),
        ("gemini-2.5-flash", "gemini-3-flash", False),
        ("gpt-5-mini", "openai/gpt-5-mini", True),
    ],
)
def test_names_of_one_model(one, other, same):
    assert is_same_model(one, other) == is_same_model(other, one) == same


# Sessions.


def test_a_session_that_returns_to_claude_is_no_longer_refused():
    """The report of NanmiCoder/cc-haha#382: DeepSeek, then Claude, in one session."""
    session = session_of(user("q"), said(thought(SIGNATURES["uuid"]), "a"), user("b"), model="deepseek-v4-pro")
    assert session.request().fixes == []
    session.configure(model="claude-haiku-4-5")
    done = session.request()
    assert json.loads(done.body)["messages"] == [user("q"), said("a"), user("b")]
    assert [fix.code for fix in done.fixes] == [REMOVED]
    session.configure(model="deepseek-v4-pro")
    assert json.loads(session.request().body)["messages"][1] == said(thought(SIGNATURES["uuid"]), "a")


def test_the_endpoint_of_a_session_may_change():
    session = session_of(user("q"), said(thought(SIGNATURES["uuid"]), "a"), user("b"), model=SONNET)
    assert [fix.code for fix in session.request().fixes] == [REMOVED]
    session.configure(policy={"endpoints": {"anthropic": {"platform": "deepseek"}}})
    done = session.request()
    assert (done.fixes, done.prefix_reset) == ([], "configured")


ENDPOINT = {"endpoints": {"anthropic": {"platform": "deepseek"}}}
LOG = [
    stage_runs.OPENED,
    {"type": "session.opened", "policy": ENDPOINT},
    stage_runs.turn(user("q")),
    stage_runs.turn(said(thought(SIGNATURES["uuid"]), "a")),
    stage_runs.turn(user("b")),
]


def stage_of(state_format, defaults=None):
    stage = TurnsStage(defaults)
    stage.use_format(state_format)
    return stage


@pytest.mark.parametrize("state_format", [1, 2, 3])
def test_the_endpoints_of_a_record_are_kept_in_state_of_format_3(state_format):
    state = {}
    stage = stage_of(state_format)
    for number, record in enumerate(stage_runs.records(LOG)):
        found = stage.process([record])
        state |= found.changes
        stage = stage_runs.restored(stage_of(state_format), state) if number % 2 else stage
    kept = state_format == 3
    assert (b"endpoints" in b"".join(filter(None, state.values()))) == kept
    expected = [user("q"), said(thought(SIGNATURES["uuid"]), "a") if kept else said("a"), user("b")]
    assert stage_runs.bodies(found)[-1]["messages"] == expected


@pytest.mark.parametrize("state_format", [1, 2, 3])
def test_the_endpoints_of_the_configuration_are_kept_in_state_of_format_3(state_format):
    stage = stage_of(state_format, Defaults(policy=policy_from(ENDPOINT)))
    found = stage.process(stage_runs.records([LOG[0], *LOG[2:]]))
    assert (b"endpoints" in b"".join(filter(None, found.changes.values()))) == (state_format == 3)
    has_thinking = "thinking" in json.dumps(stage_runs.bodies(found)[-1]["messages"])
    assert has_thinking == (state_format == 3)


def test_the_state_of_a_session_without_endpoints_has_nothing_that_earlier_builds_refuse():
    stage = stage_of(3)
    found = stage.process(stage_runs.records([LOG[0], *LOG[2:]]))
    written = b"".join(filter(None, found.changes.values()))
    assert b"endpoints" not in written
    assert b"same_issuer" not in written


def test_a_record_changes_the_endpoint_of_one_target_only():
    stage = stage_of(3)
    both = {"endpoints": {"gemini": {"issuer": "google"}}}
    stage.process(stage_runs.records([*LOG[:2], {"type": "session.opened", "policy": both}]))
    policy = stage.find(stage_runs.KEY).session.policy
    assert policy.endpoints == {"anthropic": Endpoint("deepseek"), "gemini": Endpoint(issuer="google")}


# Properties.

signatures = st.sampled_from([*SIGNATURES.values(), *filter(None, UNKNOWN)])
turns = st.lists(st.tuples(st.lists(signatures, max_size=3), st.sampled_from(["text", "call"])), min_size=1, max_size=6)
endpoints = st.sampled_from(["", "anthropic", "bedrock", "vertex", "deepseek", "minimax", "glm"])
models = st.sampled_from([SONNET, "claude-opus-4-7", "deepseek-v4-pro", "MiniMax-M3", None])


def conversation(turns):
    messages = [user("q")]
    for number, (signed, kind) in enumerate(turns):
        thoughts = [thought(signature, f"hm {at}") for at, signature in enumerate(signed)]
        if kind == "text":
            messages += [said(*thoughts, f"a {number}"), user(f"q {number}")]
        else:
            messages += [said(*thoughts, call(f"c{number}")), user(result(f"c{number}"))]
    return messages


@settings(max_examples=150)
@given(turns=turns, model=models, platform=endpoints)
def test_a_turn_keeps_all_of_its_reasoning_or_none_and_none_that_is_foreign(turns, model, platform):
    policy = {"endpoints": {"anthropic": {"platform": platform}}}
    given = conversation(turns)
    session = Session(policy=policy, model=model)
    for message in given:
        session.append(message)
        stepwise = session.request()
    whole = normalize({"messages": given} | ({"model": model} if model else {}), policy=policy)
    assert whole.body == stepwise.body == Session.load(session.head(), []).request().body
    issuer = {"deepseek": "deepseek", "minimax": "minimax", "glm": "glm"}.get(platform) or issuer_of(model)
    endpoint = Endpoint(platform, issuer)
    sent = json.loads(whole.body)["messages"]
    expected = []
    for message in given:
        blocks = message["content"]
        signed = [block["signature"] for block in blocks if block["type"] == "thinking"]
        if any(is_foreign(signature, endpoint) for signature in signed):
            blocks = [block for block in blocks if block["type"] != "thinking"]
        expected.append({**message, "content": blocks})
    assert sent == expected
    assert bool(whole.fixes) == (expected != given)
    again = normalize({"messages": sent} | ({"model": model} if model else {}), policy=policy)
    assert (again.body, again.fixes) == (whole.body, [])
