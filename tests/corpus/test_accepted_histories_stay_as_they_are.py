"""Recorded requests that Anthropic took: normalised, they are still valid, and all but a few named ones unchanged."""

from __future__ import annotations

import json
from collections import Counter

import msgspec
from recorded import accepted, needs_corpus

from pipeline import Session, normalize

pytestmark = needs_corpus

# What requests stay conservative about, although some model took it.
MENDED = {
    "turns_merged",  # neighbours of one role
    "leading_dropped",  # a first message of the assistant's
    "result_orphan",  # ... whose calls' results go with it
    "system_inlined",  # system messages among the others, which only new models take
    "system_block_as_text",
    "blank_dropped",  # a blank text beside others
    "tail_continued",  # nothing but leading assistant turns
    "image_type_corrected",  # a JPEG declared as PNG, which Claude 3.5 took
    "result_synthesised",  # the cassette that was edited by hand
}


def requests():
    return [row["request"] for row in accepted("anthropic")]


def plain(messages):
    """Messages as everybody reads them.

    String content is one text block, a false error flag says nothing, and a user's words join the results before them.
    """
    turns = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(map(unflagged, content))
        if turns and turns[-1]["role"] == message["role"]:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": message["role"], "content": blocks})
    return turns


def head(request):
    """What stands beside the messages; null, an empty list and the type of a client's own tool say nothing."""
    given = {key: value for key, value in request.items() if key != "messages" and value not in (None, [])}
    tools = [
        {key: value for key, value in tool.items() if (key, value) != ("type", "custom")}
        for tool in given.get("tools", ())
    ]
    return given | {"tools": tools}


def unflagged(block):
    return {key: value for key, value in block.items() if (key, value) != ("is_error", False)}


def test_what_was_accepted_stays_valid_and_unchanged():
    codes = Counter()
    for request in requests():
        if not request.get("messages"):
            continue
        done = normalize(msgspec.json.encode(request), policy={"tail": "prefill"})
        assert done.body is not None
        body = json.loads(done.body)
        codes.update(fix.code for fix in done.fixes)
        if not done.fixes:
            assert plain(body["messages"]) == plain(request["messages"])
            assert head(body) == head(request)
        assert normalize(done.body, policy={"tail": "prefill"}).fixes == []
    assert set(codes) <= MENDED
    assert sum(codes.values()) < 60


def test_what_was_accepted_is_the_same_turn_by_turn():
    for request in requests()[::5]:
        messages = request.get("messages") or []
        session = Session(policy={"tail": "prefill"})
        for message in messages:
            session.append(msgspec.json.encode(message))
        whole = normalize(msgspec.json.encode(messages), policy={"tail": "prefill"})
        assert session.request().unjudged == whole.unjudged
