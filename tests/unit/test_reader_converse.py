"""Bedrock's Converse shape, bare and in AgentCore's wrapper, becomes canonical turns."""

import pytest
from msgspec import UNSET, Raw
from reader_results import one

from reknit.pipeline.history.readers.shapes import read
from reknit.pipeline.model import (
    Document,
    Image,
    Issuer,
    RedactedThinking,
    Text,
    Thinking,
    Tool,
    ToolResult,
    ToolUse,
    Turn,
    Unknown,
)

ISSUER = Issuer(provider="bedrock-converse")


def test_every_member_of_the_union():
    turn, fixes = one(
        b'{"role":"assistant","content":[{"text":"a"},{"toolUse":{"toolUseId":"t","name":"f","input":{"x": 1.0}}},'
        b'{"reasoningContent":{"reasoningText":{"text":"r","signature":"s"}}},'
        b'{"reasoningContent":{"redactedContent":"AA=="}},{"cachePoint":{"type":"default"}},'
        b'{"guardContent":{"text":{"text":"g"}}},{"image":{"format":"png","source":{"bytes":"AAAA"}}},'
        b'{"image":{"format":"png","source":{"s3Location":{"uri":"s3://b"}}}},'
        b'{"document":{"format":"pdf","name":"n","source":{"bytes":"AAAA"}}},'
        b'{"document":{"format":"rtf","name":"n","source":{"bytes":"AAAA"}}}]}'
    )
    assert turn.paths is None
    assert fixes == []
    assert turn.blocks == (
        Text(text="a"),
        ToolUse(id="t", name="f", input=Raw(b'{"x": 1.0}')),
        Thinking(thinking="r", signature="s", issuer=ISSUER),
        RedactedThinking(data="AA==", issuer=ISSUER),
        Unknown(kind="cachePoint", raw=Raw(b'{"cachePoint":{"type":"default"}}')),
        Unknown(kind="guardContent", raw=Raw(b'{"guardContent":{"text":{"text":"g"}}}')),
        Image(source=Raw(b'{"type":"base64","media_type":"image/png","data":"AAAA"}')),
        Unknown(kind="image", raw=Raw(b'{"image":{"format":"png","source":{"s3Location":{"uri":"s3://b"}}}}')),
        Document(source=Raw(b'{"type":"base64","media_type":"application/pdf","data":"AAAA"}'), title="n"),
        Unknown(kind="document", raw=Raw(b'{"document":{"format":"rtf","name":"n","source":{"bytes":"AAAA"}}}')),
    )


def test_results_and_their_parts():
    turn, fixes = one(
        b'{"role":"user","content":[{"toolResult":{"toolUseId":"t","status":"error","content":['
        b'{"text":"a"},{"json":{"k": 1.0}},{"image":{"format":"gif","source":{"bytes":"AAAA"}}},'
        b'{"video":{"format":"mp4"}}]}},{"toolResult":{"toolUseId":"u","status":"success","content":[]}}]}'
    )
    assert fixes == []
    assert turn.blocks == (
        ToolResult(
            tool_use_id="t",
            is_error=True,
            content=[
                Text(text="a"),
                Text(text='{"k": 1.0}', structured=True),
                Image(source=Raw(b'{"type":"base64","media_type":"image/gif","data":"AAAA"}')),
                Unknown(kind="video", raw=Raw(b'{"video":{"format":"mp4"}}')),
            ],
        ),
        ToolResult(tool_use_id="u", content=[]),
    )


def test_bytes_as_boto3_has_them_are_base64():
    turn, _ = one({"role": "user", "content": [{"image": {"format": "png", "source": {"bytes": b"\x00\x01"}}}]})
    assert turn.blocks == (Image(source=Raw(b'{"type":"base64","media_type":"image/png","data":"AAE="}')),)


def test_a_block_with_two_members_is_two_blocks_of_one_place():
    turn, fixes = one(
        b'{"role":"assistant","content":[{"text":"a","toolUse":{"toolUseId":"t","name":"f","input":{}}}]}'
    )
    assert turn.blocks == (Text(text="a"), ToolUse(id="t", name="f", input=Raw(b"{}")))
    assert turn.paths == ("messages.0.content.0", "messages.0.content.0")
    assert fixes == []


def test_a_servers_tool_is_not_a_call():
    use = b'{"toolUse":{"toolUseId":"t","name":"f","input":{},"type":"server_tool_use"}}'
    turn, fixes = one(b'{"role":"assistant","content":[' + use + b"]}")
    assert (turn.blocks, fixes) == ((Unknown(kind="toolUse", raw=Raw(use)),), [])


@pytest.mark.parametrize(("given", "turn_id"), [(7, "7"), ("m7", "m7"), (0, "0")])
def test_the_wrappers_id_is_the_turns(given, turn_id):
    turn, fixes = one(
        {
            "message": {"role": "user", "content": [{"text": "a"}]},
            "message_id": given,
            "created_at": "2026-06-25T00:00:00Z",
        },
        index=3,
    )
    assert turn == Turn(
        role="user", blocks=(Text(text="a"),), index=3, id=turn_id, paths=("messages.3.message.content.0",)
    )
    assert fixes == []


def test_a_redaction_takes_the_messages_place():
    turn, fixes = one(
        {
            "message": {"role": "assistant", "content": [{"text": "leak"}]},
            "message_id": 1,
            "redact_message": {"role": "assistant", "content": [{"text": "[redacted]"}]},
        }
    )
    assert turn.blocks == (Text(text="[redacted]"),)
    assert turn.paths == ("messages.0.redact_message.content.0",)
    assert fixes == [("message_redacted", "messages.0.message")]


def test_invalid_parts_of_a_result_are_texts():
    result = {"toolUseId": "a", "content": ["x", {"text": "y"}, 1]}
    turn, fixes = one({"role": "user", "content": [{"toolResult": result}]})
    assert turn.blocks == (ToolResult(tool_use_id="a", content=[Text(text="x"), Text(text="y"), Text(text="1")]),)
    assert fixes == [("content_as_text", "messages.0.content.0.toolResult.content.2")]


def test_a_request_body():
    result = read(
        {
            "modelId": "amazon.nova",
            "messages": [{"role": "user", "content": [{"text": "q"}]}],
            "system": [{"text": "s"}, {"cachePoint": {"type": "default"}}],
            "toolConfig": {
                "tools": [
                    {"toolSpec": {"name": "f", "description": "d", "inputSchema": {"json": {"type": "object"}}}},
                    {"cachePoint": {"type": "default"}},
                    {"systemTool": {"name": "grounding"}},
                ],
                "toolChoice": {"any": {}},
            },
            "inferenceConfig": {"maxTokens": 5},
        }
    )
    conversation = result.conversation
    assert (result.shape, result.fixes, conversation.model) == ("bedrock-converse", (), "amazon.nova")
    assert conversation.system == Raw(b'[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}]')
    assert conversation.params == {
        "inferenceConfig": Raw(b'{"maxTokens":5}'),
        "tool_choice": Raw(b'{"type":"any"}'),
    }
    first, cache, own = conversation.tools
    assert first == Tool(name="f", description="d", input_schema=Raw(b'{"type":"object"}'))
    assert (cache.name, bytes(cache.raw)) == ("", b'{"cachePoint":{"type":"default"}}')
    assert (own.input_schema, bytes(own.raw)) == (Raw(b"null"), b'{"systemTool":{"name":"grounding"}}')
    assert first.raw is UNSET
