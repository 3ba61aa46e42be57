"""Each thing that a shape has no place for is one fix with its own code, and nothing else changes."""

import json

import msgspec
import pytest
from msgspec import Raw

from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.history.writers import WRITERS, messages_of, write
from reknit.pipeline.model import (
    Conversation,
    Document,
    Image,
    Issuer,
    Own,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)

SIGNED = "EgpzaWct+/8SEhISEhISEhISEhISEhISEhISEhISEhI="


def raw(value):
    return Raw(msgspec.json.encode(value))


PNG = raw({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="})
PDF = raw({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0x"})
MARK = raw({"type": "ephemeral"})
CALL = ToolUse(id="c1", name="read", input=raw({}))


def lost(name, role, *blocks, **members):
    """Return the codes of the fixes, with their details, of a message in a shape."""
    turn = Turn(role=role, blocks=blocks, index=0, **members)
    done = write(Conversation(turns=(turn,)), WRITERS[name])
    again = read(done.data, WRITERS[name].source) if messages_of(done.data, lines=done.lines) else None
    kept = [block for turn in again.conversation.turns for block in turn.blocks] if again else []
    return [(fix.code, fix.detail) for fix in done.fixes], kept


CASES = [
    ("strands", "system", (Text(text="x"),), {}, ("field_dropped", "system")),
    ("langchain", "system", (Image(source=PNG),), {}, ("system_media_dropped", "")),
    ("langchain", "user", (Text(text="x", cache_control=MARK),), {}, ("cache_mark_dropped", "")),
    ("langchain", "assistant", (Text(text="x", citations=raw([1])),), {}, ("citations_dropped", "")),
    ("langchain", "assistant", (Text(text="x", refusal=True),), {}, ("refusal_as_text", "")),
    ("ag-ui", "assistant", (Image(source=PNG),), {}, ("image_stubbed", "base64 source")),
    (
        "strands",
        "user",
        (Image(source=raw({"type": "url", "url": "https://e.com"})),),
        {},
        ("image_stubbed", "url source"),
    ),
    ("ag-ui", "user", (Document(source=PDF, title="t"),), {}, ("document_notes_dropped", "title")),
    # A file by its address has no name there.
    (
        "openai-agents",
        "user",
        (Document(source=raw({"type": "url", "url": "https://e.com/a.pdf"}), title="t"),),
        {},
        ("document_notes_dropped", "title"),
    ),
    ("langchain", "user", (Document(source=PDF, context="c"),), {}, ("document_notes_dropped", "context")),
    ("langchain", "user", (Document(source=raw({"type": "text", "data": "x"})),), {}, ("document_as_text", "")),
    ("otel-genai", "assistant", (Thinking(thinking="x", signature=SIGNED),), {}, ("field_dropped", "signature")),
    ("otel-genai", "assistant", (RedactedThinking(data=SIGNED),), {}, ("thinking_dropped", "")),
    ("strands", "assistant", (Thinking(thinking="x", signature=SIGNED),), {}, ("thinking_dropped", "")),
    ("langchain", "assistant", (Thinking(thinking=""),), {}, ("thinking_empty", "")),
    (
        "ai-sdk-model",
        "assistant",
        (Thinking(thinking="x", issuer=Issuer(provider="deepseek")),),
        {},
        ("field_dropped", "issuer: deepseek"),
    ),
    (
        "ag-ui",
        "assistant",
        (Thinking(thinking="x", signature="s", issuer=Issuer(provider="anthropic", model="m")),),
        {},
        ("field_dropped", "issuer: m"),
    ),
    (
        "otel-genai",
        "assistant",
        (Thinking(thinking="", signature="s", issuer=Issuer(provider="gemini")), Text(text="x")),
        {},
        ("field_dropped", "signature"),
    ),
    (
        "strands",
        "assistant",
        (ToolUse(id="c", name="f", input=raw('{"a'), incomplete=True),),
        {},
        ("call_incomplete", '{"a'),
    ),
    ("langchain", "assistant", (ToolUse(id="c", name="f", input=raw([1])),), {}, ("input_wrapped", "")),
    (
        "ag-ui",
        "assistant",
        (ToolUse(id="c", name="f", input=raw("{}"), incomplete=True),),
        {},
        ("field_dropped", "incomplete"),
    ),
    ("langchain", "assistant", (ToolUse(id="c", name="f", input=raw({}), caller=raw({})),), {}, ("caller_dropped", "")),
    ("ag-ui", "assistant", (ToolUse(id="", name="f", input=raw({})),), {}, ("call_id_derived", "call_f")),
    (
        "otel-genai",
        "user",
        (ToolResult(tool_use_id="c", content="x", is_error=True),),
        {},
        ("field_dropped", "is_error"),
    ),
    (
        "pydantic-ai",
        "user",
        (ToolResult(tool_use_id="c", content=[Text(text="x"), Text(text="y")]),),
        {},
        ("result_as_text", ""),
    ),
    ("ai-sdk-ui", "user", (ToolResult(tool_use_id="c", content="x"),), {}, ("result_orphan", "")),
    (
        "langchain",
        "user",
        (Unknown(kind="hologram", raw=raw({"type": "hologram"})),),
        {},
        ("unknown_dropped", "hologram"),
    ),
    (
        "pydantic-ai",
        "assistant",
        (
            Unknown(
                kind="web_search_call", raw=raw({"type": "web_search_call"}), issuer=Issuer(provider="openai-responses")
            ),
        ),
        {},
        ("native_dropped", "web_search_call"),
    ),
    ("pydantic-ai", "user", (Text(text="x"),), {"id": "m1"}, ("field_dropped", "id: m1")),
    ("langchain", "assistant", (Text(text="x"),), {"incomplete": True}, ("field_dropped", "incomplete")),
    ("langchain", "assistant", (ToolResult(tool_use_id="c", content="x"),), {}, ("block_moved", "")),
    (
        "langchain",
        "assistant",
        (
            ToolUse(
                id="c", name="f", input=raw({}), own=Own(provider="openai-responses", members={"namespace": raw("n")})
            ),
        ),
        {},
        ("field_dropped", "namespace"),
    ),
]


@pytest.mark.parametrize(("name", "role", "blocks", "members", "fix"), CASES, ids=lambda value: str(value)[:30])
def test_a_loss_has_a_fix(name, role, blocks, members, fix):
    assert lost(name, role, *blocks, **members)[0] == [fix]


# Losses that no shape avoids.
EVERYWHERE = {
    "call_id_derived",
    "unknown_dropped",
    "block_moved",
}


@pytest.mark.parametrize(("name", "role", "blocks", "members", "fix"), CASES, ids=lambda value: str(value)[:30])
def test_another_shape_has_the_place(name, role, blocks, members, fix):
    del name
    free = [each for each in WRITERS if fix not in lost(each, role, *blocks, **members)[0]]
    assert bool(free) != bool({fix[0], " ".join(fix)} & EVERYWHERE)


@pytest.mark.parametrize(("issuer", "code"), [({}, "unknown_dropped"), ({"provider": "gemini"}, "native_dropped")])
def test_an_unknown_part_of_a_result_is_named(issuer, code):
    part = Unknown(kind="hologram", raw=raw({"type": "hologram"}), **({"issuer": Issuer(**issuer)} if issuer else {}))
    turns = (
        Turn(role="assistant", blocks=(CALL,), index=0),
        Turn(role="user", blocks=(ToolResult(tool_use_id="c1", content=[Text(text="x"), part]),), index=1),
    )
    fixes = [
        (fix.code, fix.detail) for writer in WRITERS.values() for fix in write(Conversation(turns=turns), writer).fixes
    ]
    assert fixes == [(code, "hologram")] * len(WRITERS)


def test_calls_of_one_answer_are_after_its_words_where_results_are_parts_of_calls():
    codes, kept = lost("ai-sdk-ui", "assistant", CALL, Text(text="x"))
    assert codes == [("call_moved", "")]
    assert [type(block) for block in kept] == [Text, ToolUse]


def test_a_second_result_of_a_call_and_one_that_came_later_are_named():
    result = ToolResult(tool_use_id="c1", content="x")
    turns = [
        Turn(role="assistant", blocks=(CALL,), index=0),
        Turn(role="user", blocks=(Text(text="Well?"),), index=1),
        Turn(role="user", blocks=(result, result), index=2),
    ]
    done = write(Conversation(turns=tuple(turns)), WRITERS["ai-sdk-ui"])
    assert [fix.code for fix in done.fixes] == ["result_moved", "result_duplicate"]
    assert all(fix.path == f"messages.2.content.{at}" for at, fix in enumerate(done.fixes))


def test_an_id_that_came_before_is_left_out():
    turns = [Turn(role="user", blocks=(Text(text=text),), index=at, id="m") for at, text in enumerate("ab")]
    done = write(Conversation(turns=tuple(turns)), WRITERS["langchain"])
    assert [(fix.code, fix.path) for fix in done.fixes] == [("field_dropped", "messages.1.id")]
    assert [message["data"]["id"] for message in json.loads(done.data)] == ["m", None]
