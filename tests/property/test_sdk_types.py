"""Written requests fit the types of the providers' libraries, and requests of these types stay the same."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reader_results import vectors
from sdk_types import fault
from sdk_walk import WALKS, requests
from strategies import SCALE, healthy_histories, issued, policies
from target_cases import TARGET_CASES, TargetCase

from reknit.pipeline import Session, normalize
from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.registry import TARGETS as DESCRIBED
from reknit.pipeline.testing import broken_histories
from reknit.pipeline.testing.promises import differences

# Requests for Mistral have the types of its own library, which is no dependency of the tests.
UNTYPED = {"mistral"}
JSON_BODIES = [
    target_case
    for target_case in TARGET_CASES
    if target_case.shape not in {None, "auto"} and target_case.target not in UNTYPED
]
TARGETS = sorted({target_case.target for target_case in JSON_BODIES})
TOOLS = [
    {"name": "read", "description": "Read a file.", "input_schema": {"type": "object", "properties": {}}},
    {"name": "mcp.server/read file", "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
]
SETTING = {
    "system": "Be brief.",
    "tools": TOOLS,
    "params": {"max_tokens": 64, "temperature": 1, "stop_sequences": ["x"]},
}

CALLED = [
    {"role": "user", "content": "Read."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_01", "name": "read", "input": {"path": "a"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_01", "content": "Hello."}]},
]


def written(messages, target, model, **setting):
    document = {"messages": messages, **setting} | ({"model": model} if model else {})
    return normalize(json.dumps(document).encode(), to=target).body


@pytest.mark.parametrize(("target", "model"), JSON_BODIES)
@pytest.mark.parametrize("vector", vectors("broken_histories"), ids=lambda vector: vector["name"])
def test_a_repaired_history_has_the_types_of_the_client_library(vector, target, model):
    assert fault(target, written(vector["messages"], target, model), model) == ""


@pytest.mark.parametrize(("target", "model"), JSON_BODIES)
def test_the_histories_of_the_kit_have_the_types_of_the_client_library(target, model):
    for sample in broken_histories():
        document = sample.history if isinstance(sample.history, dict) else {"messages": sample.history}
        done = normalize(json.dumps({**document, **({"model": model} if model else {})}).encode(), to=target)
        assert done.body is None or fault(target, done.body, model) == "", sample.name


@pytest.mark.parametrize(("target", "model"), JSON_BODIES)
@settings(max_examples=65 * SCALE)
@given(data=st.data(), policy=policies, own=st.booleans())
def test_any_history_has_the_types_of_the_client_library(target, model, data, policy, own):
    document = data.draw(TargetCase(target, model).documents)
    if own:
        document["messages"] = issued(document["messages"], target)
    body = normalize(json.dumps(document), to=target, policy=policy).body
    assert body is None or fault(target, body, model) == ""


@pytest.mark.parametrize(("target", "model"), JSON_BODIES)
@settings(max_examples=20 * SCALE)
@given(messages=healthy_histories())
def test_system_tools_and_parameters_have_the_types_of_the_client_library(target, model, messages):
    assert fault(target, written(messages, target, model, **SETTING), model) == ""


def changed(body, *, key, value):
    """Return the body with its first message (or item, or content) changed."""
    body = json.loads(body)
    first = body[next(name for name in ("messages", "input", "contents") if name in body)][0]
    first[key] = value
    return json.dumps(body).encode()


@pytest.mark.parametrize("target", TARGETS)
def test_the_oracle_rejects_unknown_keys_and_wrong_types(target):
    body = written([{"role": "user", "content": "hello"}], target, None)
    inner = "parts" if target == "gemini" else "content"
    assert fault(target, body) == ""
    assert fault(target, changed(body, key="colour", value="red"))
    assert fault(target, changed(body, key="role", value=7))
    assert fault(target, changed(body, key=inner, value=7))
    assert fault(target, changed(body, key=inner, value=[{"text": 7}]))
    assert fault(target, changed(body, key=inner, value=[{"type": "hologram", "text": "x", "depth": 3}]))
    assert fault(target, json.dumps({**json.loads(body), "colour": "red"}).encode())


def test_a_deeply_nested_block_is_checked_too():
    for target in ("anthropic", "openai-chat", "openai-responses", "gemini", "bedrock-converse"):
        body = written(CALLED, target, None)
        assert fault(target, body) == ""
        assert b'"path"' in body or b'\\"path\\"' in body
        inside = {"gemini": b'"name"', "bedrock-converse": b'"toolUseId"'}.get(target, b'"type"')
        assert fault(target, body.replace(inside, b'"colour"')), target


# Every member that the types of a provider's library define, and every branch of their unions, sent back to it.

# The requests that are changed, by their place in the types, each with its reason.
CHANGED = {
    "openai-chat": {
        # Deprecated: a call becomes one of `tool_calls`, with a derived id (the lossless fix `call_id_derived`).
        "messages[].function_call (assistant)",
        "messages[] (function)",
    },
    "bedrock-converse": {
        # `Member must satisfy enum value set: [user, assistant]` (BED-27): only the newest types list the role
        # system, and no recording shows that its text is accepted. It is sent as a user message, with the fix
        # `system_inlined`.
        "messages[].role=system text (system)",
    },
}


def harm(target, body, done):
    """Return the fixes, hard violations and differences of a request that must stay the same."""
    said = [f"fix {fix.code} at {fix.path}" for fix in done.fixes]
    said += [f"{each.rule}: {each.message}" for each in done.violations if each.severity == "hard"]
    if done.body is None:
        return said or ["refused"]
    sent = json.dumps(body).encode()
    return said + [f"{each.kind} {each.path}" for each in differences(sent, done.body, DESCRIBED[target].equalities)]


def appended(target, body):
    """Return the request of a session that takes the messages one by one and is reloaded from its state after each."""
    key = DESCRIBED[target].rules.key
    head = read(json.dumps({**body, key: []}).encode(), target).conversation
    session = Session((target,), system=head.system, tools=head.tools, model=head.model, params=head.params)
    segments = {}
    for message in body[key]:
        session.append(json.dumps(message).encode(), target)
        segments |= session.take_segments(flush=True)
        session = Session.load(session.head(), [segments[number] for number in session.segments])
    return session.request()


@pytest.mark.parametrize("target", WALKS)
def test_every_member_and_branch_round_trips_to_its_own_provider(target):
    found = {
        place: said
        for place, body in requests(target)
        if (said := harm(target, body, normalize(json.dumps(body).encode(), to=target)))
    }
    changed = CHANGED.get(target, set())
    assert {place: said for place, said in found.items() if place not in changed} == {}
    assert changed - found.keys() == set()


@pytest.mark.parametrize("target", WALKS)
def test_every_member_and_branch_round_trips_message_by_message_and_after_a_reload(target):
    found = {}
    for place, body in requests(target):
        whole = normalize(json.dumps(body).encode(), to=target, source=target)
        step = appended(target, body)
        if (step.body, step.fixes) != (whole.body, whole.fixes):
            found[place] = step.text
    assert found == {}


@pytest.mark.parametrize("target", WALKS)
def test_every_member_and_branch_can_be_written_for_the_other_providers(target):
    """None crashes or produces a request that breaks a rule. Vectors test what other providers cannot express."""
    found = {}
    said = [request for request in requests(target) if DESCRIBED[target].rules.key in request.place]
    for place, body in said:
        bare = {key: value for key, value in body.items() if key not in {"model", "modelId"}}
        for other in TARGETS:
            done = normalize(json.dumps(bare).encode(), to=other, source=target)
            hard = [each.rule for each in done.violations if each.severity == "hard"]
            if hard and done.ids:
                found[place, other] = hard
    assert found == {}


# Places of each library's types that are reached only if its unions, lists and inner types are walked.
REACHED = {
    "anthropic": {
        "messages[].content[].fallback.trigger (assistant)",
        "messages[].content[].mcp_tool_listing.tools[].description (assistant)",
        "messages[].content[].tool_result.content[].browser_state.tabs[].active=True (user)",
        "messages[].content[].tool_use.toolset_name (assistant)",
        "messages[].content[].image.transformations.oversized_image=error (user)",
        "messages[].output_config.effort=low (system)",
    },
    "openai-chat": {
        "messages[].content[].text.prompt_cache_breakpoint (developer)",
        "messages[].content[].text.prompt_cache_breakpoint (tool)",
        "messages[].tool_calls[].custom (assistant)",
    },
    "openai-responses": {
        "input[].content[].input_text.prompt_cache_breakpoint (assistant)",
        "input[].content[].input_text.prompt_cache_breakpoint (developer)",
        "input[].custom_tool_call_output.output[].input_file.prompt_cache_breakpoint",
        "input[].function_call.async=True",
        "input[].image_generation_call.quality=low",
        "tools[].web_search.type=web_search_2025_08_26",
        "tools[].programmatic_tool_calling",
        "access_programs.cyber=standard",
        "background_options.completion_window=2h",
        "image.context_compression=auto",
        "input[].function_call.agent.agent_name",
    },
    "gemini": {
        "tools[].parallelAiSearch.apiKey",
        "tools[].exaAiSearch.apiKey",
        "tools[].mcpServers[].name",
        "contents[].parts[].partMetadata",
        "contents[].parts[].functionResponse.scheduling=SILENT",
        "contents[].parts[].functionResponse.willContinue=False",
        "contents[].parts[].audioTranscription.words[].word",
        "contents[].parts[].speechMetadata.speaker",
        "contents[].parts[].documentMetadata.startPage",
        "contents[].parts[].functionResponse.parts[].spreadsheetMetadata.sheetIndex",
    },
    "bedrock-converse": {
        "messages[].content[].audio.format=opus audio (user)",
        "messages[].content[].toolResult.content[].searchResult.citations.enabled toolResult (user)",
        "messages[].content[].guardContent.image guardContent (user)",
    },
}


@pytest.mark.parametrize("target", WALKS)
def test_the_walk_reaches_deeply_nested_members_and_branches(target):
    assert REACHED[target] - {place for place, _ in requests(target)} == set()
