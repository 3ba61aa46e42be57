"""The decoders against the official SDKs: a new event or block type fails a test here instead of being skipped."""

import json
from typing import get_args

import pytest
import stream_runs
from stream_runs import only

from reknit.pipeline.providers.gemini.stream import wire as gemini
from reknit.pipeline.providers.openai_chat.stream import wire as openai_chat_wire
from reknit.pipeline.providers.openai_responses.stream import wire as responses
from reknit.pipeline.streams.session import Recovery
from reknit.topics.items import AgentUnrecognized, ItemCompleted, ItemDelta

chat_types = pytest.importorskip("openai.types.chat.chat_completion_chunk")
response_types = pytest.importorskip("openai.types.responses")
genai_types = pytest.importorskip("google.genai.types")

# Events about the provider's own tools: passed on, in the item that they are about.
ABOUT_ITEMS = {
    "code_interpreter_call.completed", "code_interpreter_call.in_progress", "code_interpreter_call.interpreting",
    "code_interpreter_call_code.delta", "code_interpreter_call_code.done",
    "file_search_call.completed", "file_search_call.in_progress", "file_search_call.searching",
    "image_generation_call.completed", "image_generation_call.generating", "image_generation_call.in_progress",
    "image_generation_call.partial_image",
    "mcp_call.completed", "mcp_call.failed", "mcp_call.in_progress", "mcp_call_arguments.delta",
    "mcp_call_arguments.done", "mcp_list_tools.completed", "mcp_list_tools.failed", "mcp_list_tools.in_progress",
    "compaction.compacting", "output_text.annotation.added",
    "shell_call_command.added", "shell_call_command.delta", "shell_call_command.done",
    "shell_call_output_content.delta", "shell_call_output_content.done",
    "web_search_call.completed", "web_search_call.in_progress", "web_search_call.searching",
}  # fmt: skip
# Events that name no item: passed on unchanged.
ABOUT_NOTHING = {"audio.delta", "audio.done", "audio.transcript.delta", "audio.transcript.done"}
# Items that are blocks of the canonical form; all others stay unchanged.
READ_ITEMS = {"message", "reasoning", "function_call", "custom_tool_call"}
# Gemini parts that are blocks of the canonical form, with their metadata.
READ_PARTS = {"text", "thought", "thought_signature", "function_call"}


def kinds(union):
    found = set()
    for member in get_args(union):
        fields = getattr(member, "model_fields", None)
        if fields is None:
            found |= kinds(member)
        else:
            found |= set(get_args(fields["type"].annotation))
    return found


def test_every_event_of_the_responses_api_is_read_or_deliberately_passed_on():
    known = kinds(response_types.ResponseStreamEvent)
    passed = {f"response.{name}" for name in ABOUT_ITEMS | ABOUT_NOTHING}
    assert known - responses.NAMES - responses.SILENT - passed == {"error"}
    assert passed | responses.NAMES <= known


@pytest.mark.parametrize("name", sorted(ABOUT_ITEMS))
def test_events_about_the_providers_tools_belong_to_their_item(name):
    item = {"type": "some_call", "id": "i"}
    about = {"type": f"response.{name}", "output_index": 0, "item_id": "i"}
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        about,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]
    items = stream_runs.items_of("openai-responses", events)
    deltas = only(items, ItemDelta)
    assert [(found.delta_type, json.loads(bytes(found.raw))) for found in deltas] == [(name, about)]
    assert len(only(items, ItemCompleted)) == 1


@pytest.mark.parametrize("name", sorted(ABOUT_NOTHING))
def test_other_events_are_passed_on(name):
    event = {"type": f"response.{name}", "sequence_number": 1}
    (item,) = Recovery("openai-responses").feed(json.dumps(event).encode())
    assert isinstance(item, AgentUnrecognized)
    assert json.loads(bytes(item.event)) == event


def test_every_other_item_of_the_responses_api_stays_unchanged():
    others = kinds(response_types.ResponseOutputItem) - READ_ITEMS
    assert len(others) > 15
    for kind in others:
        item = {"type": kind, "id": "i", "status": "completed", "call_id": "c", "output": [], "arguments": {}}
        event = {"type": "response.completed", "response": {"id": "r", "output": [item]}}
        assert stream_runs.run("openai-responses", event).contents == [[item]]


def test_every_member_of_a_chat_delta_is_known():
    known = set(chat_types.ChoiceDelta.model_fields)
    assert known <= set(openai_chat_wire.Delta.__struct_fields__)


def test_every_part_of_gemini_is_read_or_passed_on():
    known = set(genai_types.Part.model_fields)
    assert known >= READ_PARTS
    assert set(gemini.Part.__struct_fields__) == READ_PARTS | {"own", "about"}
    for name in known - READ_PARTS:
        member = genai_types.Part.model_fields[name].alias or name
        chunk = {"candidates": [{"content": {"parts": [{member: {"x": 1}}]}, "finishReason": "STOP"}]}
        ((block,),) = stream_runs.run("gemini", chunk).contents
        assert block.get("came", block)[member] == {"x": 1}


def test_every_member_of_geminis_calls_is_known():
    assert set(genai_types.FunctionCall.model_fields) == set(gemini.FunctionCall.__struct_fields__)
