"""Cache points of Converse's own: which of them stay in a request, and which are left out."""

from __future__ import annotations

import json

import pytest

from reknit.pipeline import Session, heal, normalize

CLAUDE, CLAUDE_3 = "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic.claude-3-haiku-20240307-v1:0"
NOVA, LLAMA = "us.amazon.nova-2-lite-v1:0", "us.meta.llama3-3-70b-instruct-v1:0"
PROFILE = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abcdefghijk2"
POINT = {"cachePoint": {"type": "default"}}
REASONING = {"reasoningContent": {"reasoningText": {"text": "hm", "signature": "AAAA"}}}
TOOLS = {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}]}


def text(words):
    return {"text": words}


def user(*content):
    return {"role": "user", "content": list(content)}


def said(*content):
    return {"role": "assistant", "content": list(content)}


def rounds(count):
    """A conversation in which each message of the user's ends with a cache point."""
    messages = []
    for at in range(count):
        messages += [user(text(f"q{at}"), POINT), said(text(f"a{at}"))]
    return messages[:-1]


def made(messages, model, **head):
    done = normalize({"model": model, "messages": messages, **head}, to="bedrock-converse")
    return json.loads(done.body), [(fix.code, fix.path) for fix in done.fixes]


def marked(body):
    """The places of messages with a cache point."""
    return [at for at, message in enumerate(body["messages"]) if POINT in message["content"]]


@pytest.mark.parametrize("model", [CLAUDE, NOVA, PROFILE])
def test_a_model_that_caches_gets_its_points(model):
    messages = [user(text("a"), POINT, text("b")), said(text("c"), POINT), user(text("d"), POINT)]
    body, fixes = made(messages, model, system=[text("Be brief."), POINT])
    assert (body["messages"], body["system"], fixes) == (messages, [text("Be brief."), POINT], [])


@pytest.mark.parametrize("model", [CLAUDE_3, LLAMA, "us.mistral.pixtral-large-2502-v1:0", "us.deepseek.r1-v1:0"])
def test_a_model_that_does_not_gets_none(model):
    messages = [user(text("a"), POINT), said(text("c")), user(text("d"), POINT)]
    body, fixes = made(
        messages, model, system=[text("Be brief."), POINT], toolConfig={"tools": [*TOOLS["tools"], POINT]}
    )
    assert "cachePoint" not in json.dumps(body)
    assert fixes == [
        ("cache_mark_dropped", "system"),
        ("cache_mark_dropped", "tools"),
        ("cache_point_dropped", "messages.0.content.1"),
        ("cache_point_dropped", "messages.2.content.1"),
    ]


def test_a_fifth_point_is_left_out():
    messages = rounds(6)
    body, fixes = made(messages, CLAUDE)
    assert marked(body) == [0, 2, 4, 6]
    assert fixes == [("cache_point_dropped", "messages.8.content.1"), ("cache_point_dropped", "messages.10.content.1")]
    assert made(rounds(4), CLAUDE) == ({"messages": rounds(4)}, [])


def test_the_system_prompt_and_the_tools_count():
    head = {"system": [text("a"), POINT], "toolConfig": {"tools": [*TOOLS["tools"], POINT]}}
    body, fixes = made(rounds(3), CLAUDE, **head)
    assert (marked(body), fixes) == ([0, 2], [("cache_point_dropped", "messages.4.content.1")])
    prompt = [part for words in "abcde" for part in (text(words), POINT)]
    body, fixes = made(rounds(1), CLAUDE, system=prompt)
    assert body["system"] == [text("a"), *prompt[2:]]
    assert fixes == [("cache_mark_dropped", "system"), ("cache_point_dropped", "messages.0.content.1")]


def test_a_session_sends_what_its_whole_history_would():
    session = Session(["bedrock-converse"], model=CLAUDE)
    for count, message in enumerate(rounds(7), start=1):
        session.append(message)
        whole = normalize({"model": CLAUDE, "messages": rounds(7)[:count]}, to="bedrock-converse")
        found = session.request("bedrock-converse")
        assert (found.body, found.fixes, found.ledger) == (whole.body, whole.fixes, whole.ledger)
        assert found.body.count(b'{"cachePoint"') <= 4


def test_a_point_after_reasoning_is_left_out():
    body, fixes = made([user(text("q")), said(REASONING, POINT, text("a"), POINT), user(text("d"))], CLAUDE)
    assert body["messages"][1] == said(REASONING, text("a"), POINT)
    assert fixes == [("cache_point_dropped", "messages.1.content.1")]


def test_nova_takes_none_among_its_tools():
    tools = {"tools": [*TOOLS["tools"], POINT]}
    body, fixes = made([user(text("q"), POINT)], NOVA, toolConfig=tools)
    assert (body["toolConfig"], marked(body), fixes) == (TOOLS, [0], [("cache_mark_dropped", "tools")])
    assert made([user(text("q"), POINT)], CLAUDE, toolConfig=tools)[0]["toolConfig"] == tools


def test_none_is_set_after_a_text_that_says_nothing():
    blank = {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}}
    body, fixes = made([user(blank)], NOVA)
    assert (body["messages"], fixes) == ([user(text(""))], [("cache_mark_dropped", "messages.0.content.0")])


def test_one_inside_an_error_is_not_moved_out_of_it():
    failed = {"toolResult": {"toolUseId": "t", "content": [text("no"), POINT], "status": "error"}}
    call = {"toolUse": {"toolUseId": "t", "name": "f", "input": {}}}
    body, fixes = made([user(text("q")), said(call), user(failed)], CLAUDE, toolConfig=TOOLS)
    bare = {"toolResult": {"toolUseId": "t", "content": [text("no")], "status": "error"}}
    assert body["messages"][2] == user(bare)
    assert fixes == [("cache_point_dropped", "messages.2.content.0")]


REFUSED = {
    "__type": "AccessDeniedException",
    "message": "You invoked an unsupported model or your request did not allow prompt caching. See the documentation "
    "for more information.",
}


def test_a_session_remembers_that_a_profile_takes_no_cache_points():
    session = Session(["bedrock-converse"], model=PROFILE)
    session.append(user(text("a"), POINT))
    assert POINT in json.loads(session.request("bedrock-converse").body)["messages"][0]["content"]
    healed = session.refused("bedrock-converse", status=403, error=REFUSED)
    assert [(fix.code, fix.path, fix.lossless) for fix in healed.fixes] == [
        ("healed_cache_points", "messages.0.content.1", True)
    ]
    assert json.loads(healed.body)["messages"] == [user(text("a"))]
    for message in (said(text("b"), POINT), user(text("c"), POINT)):
        session.append(message)
    later = json.loads(session.request("bedrock-converse").body)
    assert later["messages"] == [user(text("a")), said(text("b")), user(text("c"))]


def test_a_message_of_nothing_but_a_cache_point_does_not_become_empty():
    body = json.dumps({"messages": [user(POINT), user(text("a"), POINT)]}).encode()
    done = heal(body, "bedrock-converse", status=403, error=REFUSED)
    assert json.loads(done.body)["messages"] == [user(POINT), user(text("a"))]
