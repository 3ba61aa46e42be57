"""Converse's JSON: a block that is written and read again is the same block."""

import msgspec
import pytest
from msgspec import Raw

from reknit.pipeline import model
from reknit.pipeline.providers.bedrock_converse import wire

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = model.Image(source=Raw(b'{"type":"base64","media_type":"image/png","data":"%b"}' % PNG.encode()))
PDF = Raw(b'{"type":"base64","media_type":"application/pdf","data":"JVBERi0="}')
ERROR = model.Own("bedrock-converse", {"error": Raw(b'{"message":"m"}')})

# Each block with its JSON, as the service's model names the members (botocore, bedrock-runtime, ContentBlock).
BLOCKS = [
    (model.Text(text="é\n"), '{"text":"é\\n"}'),
    (
        model.ToolUse(id="t", name="ls", input=Raw(b'{"a": 1.0}')),
        '{"toolUse":{"toolUseId":"t","name":"ls","input":{"a": 1.0}}}',
    ),
    (
        model.ToolResult(tool_use_id="t", content=[model.Text(text="out"), IMAGE], is_error=True),
        (
            '{"toolResult":{"toolUseId":"t","content":[{"text":"out"},'
            f'{{"image":{{"format":"png","source":{{"bytes":"{PNG}"}}}}}}],"status":"error"}}}}'
        ),
    ),
    (
        model.ToolResult(tool_use_id="t", content=[model.Text(text='{"a":1}', structured=True)]),
        '{"toolResult":{"toolUseId":"t","content":[{"json":{"a":1}}],"status":"success"}}',
    ),
    (
        msgspec.structs.replace(IMAGE, own=ERROR),
        f'{{"image":{{"format":"png","source":{{"bytes":"{PNG}"}},"error":{{"message":"m"}}}}}}',
    ),
    (
        model.Document(source=PDF, title="d", context="c", citations=Raw(b'{"enabled":true}')),
        (
            '{"document":{"name":"d","format":"pdf","source":{"bytes":"JVBERi0="},"context":"c",'
            '"citations":{"enabled":true}}}'
        ),
    ),
    (
        model.Thinking(thinking="hm", signature="s", issuer=wire.ISSUER),
        '{"reasoningContent":{"reasoningText":{"text":"hm","signature":"s"}}}',
    ),
    (
        model.Thinking(thinking="hm", issuer=wire.ISSUER),
        '{"reasoningContent":{"reasoningText":{"text":"hm"}}}',
    ),
    (
        model.RedactedThinking(data="eA==", issuer=wire.ISSUER),
        '{"reasoningContent":{"redactedContent":"eA=="}}',
    ),
    (
        model.Unknown(kind="cachePoint", raw=Raw(b'{"cachePoint":{"type":"default"}}')),
        '{"cachePoint":{"type":"default"}}',
    ),
]


@pytest.mark.parametrize(("block", "written"), BLOCKS)
def test_a_block_is_written_and_read_again(block, written):
    assert msgspec.json.encode(wire.written(block)).decode() == written
    assert wire.read(msgspec.json.decode(written, type=wire.Member)) == block


@pytest.mark.parametrize("content", ["out", [model.Text(text="out")]])
def test_a_string_and_a_text_are_one_part_of_a_result(content):
    result = model.ToolResult(tool_use_id="t", content=content)
    assert msgspec.json.encode(wire.written_parts(result)) == b'[{"text":"out"}]'


@pytest.mark.parametrize("content", ["", " \n", msgspec.UNSET, []])
def test_a_result_without_words_has_no_part(content):
    assert wire.written_parts(model.ToolResult(tool_use_id="t", content=content)) == ()


def test_a_message_has_its_role_and_its_content_only():
    message = wire.written_message("user", [model.Text(text="hi")])
    assert msgspec.json.encode(message) == b'{"role":"user","content":[{"text":"hi"}]}'
