"""Blocks, items and events of the providers' own libraries are the ones that Reknit knows.

The libraries are pinned. If a pin moves and a library gains a type that is neither handled nor listed, this fails:
`tests/vectors/upstream_types.json` says of each type whether it is `handled` (a shape of its own), `passed`
(unchanged: blocks to their own provider, events as opaque items) or `dropped` (recorded), and why.
"""

import inspect
import json
import re
import types
from pathlib import Path
from typing import Annotated, Union, get_args, get_origin, get_type_hints

import anthropic.types as anthropic_types
import openai.types.beta as responses_beta
import openai.types.chat as chat_types
import openai.types.responses as responses_types
import pytest
from anthropic.types import beta as anthropic_beta
from anthropic.types import tool_result_block_param
from botocore.session import get_session
from google.genai import types as gemini_types
from openai.types.chat.chat_completion_chunk import ChoiceDelta
from openai.types.responses import response_output_message

from reknit.pipeline import normalize, recover
from reknit.pipeline.history.pieces import NATIVE_TYPES
from reknit.pipeline.providers.anthropic.rules.wire import BETA_BLOCKS, BETA_TOOLS, KINDS
from reknit.topics.items import AgentUnrecognized

ROOT = Path(__file__).parents[2]
LISTED = json.loads((ROOT / "tests" / "vectors" / "upstream_types.json").read_text("utf-8"))
FATES = {"handled", "passed", "dropped"}
# The files below pipeline/ in which a handled type is named.
PLACES = {
    "anthropic.content": ["model.py"],
    "anthropic.result_content": ["model.py"],
    "anthropic.events": ["providers/anthropic/stream/*.py", "providers/claude_cli/stream/*.py"],
    "anthropic.deltas": ["providers/anthropic/stream/*.py", "providers/claude_cli/stream/*.py"],
    "openai_chat.parts": ["history/readers/canonical.py"],
    "openai_chat.roles": ["history/readers/*.py"],
    "openai_chat.calls": ["providers/openai_chat/reader.py"],
    "openai_chat.delta": ["providers/openai_chat/stream/*.py"],
    "openai_responses.items": ["providers/openai_responses/reader.py"],
    "openai_responses.content": ["history/readers/canonical.py"],
    "openai_responses.output_items": ["providers/openai_responses/stream/*.py"],
    "openai_responses.output_content": ["providers/openai_responses/stream/*.py"],
    "openai_responses.events": ["providers/openai_responses/stream/*.py"],
    "gemini.parts": ["providers/gemini*/reader.py"],
    "gemini.candidate": ["providers/gemini/stream/*.py"],
    "converse.content": ["providers/bedrock_converse/wire.py"],
    "converse.result_content": ["providers/bedrock_converse/wire.py"],
    "converse.system": ["history/readers/*.py"],
    "converse.events": ["providers/bedrock_converse/stream/*.py"],
    "converse.deltas": ["providers/bedrock_converse/stream/*.py"],
    "converse.starts": ["providers/bedrock_converse/stream/*.py"],
}


def members(union):
    origin = get_origin(union)
    if origin is Annotated:
        return members(get_args(union)[0])
    if origin in {Union, types.UnionType}:
        return [member for part in get_args(union) for member in members(part)]
    return [union]


def tags(kind, key):
    if inspect.isclass(kind) and hasattr(kind, "model_fields"):
        field = kind.model_fields.get(key)
        hint = field.annotation if field else None
    else:
        hint = get_type_hints(kind).get(key)
    literals = [get_args(part) for part in members(hint) if part is not None]
    return [value for values in literals for value in values if isinstance(value, str)]


def kinds(union, key="type"):
    found = set()
    for kind in members(union):
        names = tags(kind, key)
        assert names or kind.__name__.removeprefix("Beta") == "EasyInputMessageParam", f"{kind} has no {key}"
        found.update(names)
    return found


def camel(name):
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def fields(model):
    return {camel(name) for name in model.model_fields}


def shape(name):
    service = get_session().get_service_model("bedrock-runtime")
    return set(service.shape_for(name).members)


UPSTREAM = {
    "anthropic.content": kinds(anthropic_types.ContentBlockParam)
    | kinds(anthropic_types.ContentBlock)
    | kinds(anthropic_beta.BetaContentBlockParam),
    "anthropic.result_content": kinds(tool_result_block_param.Content),
    "anthropic.events": kinds(anthropic_types.RawMessageStreamEvent) | kinds(anthropic_beta.BetaRawMessageStreamEvent),
    "anthropic.deltas": kinds(anthropic_types.RawContentBlockDelta) | kinds(anthropic_beta.BetaRawContentBlockDelta),
    "openai_chat.parts": kinds(chat_types.ChatCompletionContentPartParam),
    "openai_chat.roles": kinds(chat_types.ChatCompletionMessageParam, "role"),
    "openai_chat.calls": kinds(chat_types.ChatCompletionMessageToolCallUnionParam),
    "openai_chat.delta": set(ChoiceDelta.model_fields),
    "openai_responses.items": kinds(responses_types.ResponseInputItemParam)
    | kinds(responses_beta.BetaResponseInputItemParam),
    "openai_responses.content": kinds(responses_types.ResponseInputContentParam),
    "openai_responses.output_items": kinds(responses_types.ResponseOutputItem),
    "openai_responses.output_content": kinds(response_output_message.Content),
    "openai_responses.events": kinds(responses_types.ResponseStreamEvent),
    "gemini.parts": fields(gemini_types.Part),
    "gemini.candidate": fields(gemini_types.Candidate),
    "converse.content": shape("ContentBlock"),
    "converse.result_content": shape("ToolResultContentBlock"),
    "converse.system": shape("SystemContentBlock"),
    "converse.events": shape("ConverseStreamOutput"),
    "converse.deltas": shape("ContentBlockDelta"),
    "converse.starts": shape("ContentBlockStart"),
}
ENTRIES = [
    pytest.param(surface, name, fate, why, id=f"{surface}-{name}")
    for surface, listed in LISTED.items()
    for name, (fate, why) in listed.items()
]


@pytest.mark.parametrize("surface", UPSTREAM)
def test_every_upstream_type_is_listed_and_every_listed_type_exists(surface):
    listed = set(LISTED[surface])
    assert UPSTREAM[surface] - listed == set(), "new upstream: handle them, or list them with a reason"
    assert listed - UPSTREAM[surface] == set(), "gone upstream"


def test_every_surface_is_listed():
    assert LISTED.keys() == UPSTREAM.keys()


@pytest.mark.parametrize(("surface", "name", "fate", "why"), ENTRIES)
def test_an_entry_has_an_outcome_and_a_reason(surface, name, fate, why):
    assert fate in FATES
    assert re.fullmatch(r"[A-Za-z].*[^.]", why)


def test_types_that_only_the_beta_api_accepts_require_its_feature():
    """A tool or block that the plain API begins to accept needs no header any more."""
    tools = kinds(anthropic_beta.BetaToolUnionParam) - kinds(anthropic_types.ToolUnionParam)
    blocks = kinds(anthropic_beta.BetaContentBlockParam) - kinds(anthropic_types.ContentBlockParam)
    assert set(BETA_TOOLS) == tools
    assert {KINDS[kind] for kind in BETA_BLOCKS} == blocks


def sources(surface):
    paths = [path for place in PLACES[surface] for path in sorted((ROOT / "pipeline").glob(place))]
    return "\n".join(path.read_text("utf-8") for path in paths)


def named(name, text):
    """Return True if a type is named as a string, or as the field that it is decoded into."""
    snake = re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", name)
    return f'"{name}"' in text or bool(re.search(rf"^    {snake}\s*:", text, re.MULTILINE))


def fated(surface, *fates):
    return [name for name, (fate, _) in LISTED[surface].items() if fate in fates]


# Recognised by their suffix, and tested below.
FAILURES = [name for name in fated("converse.events", "handled") if name.endswith("Exception")]


@pytest.mark.parametrize(
    ("surface", "name"),
    [(surface, name) for surface in LISTED for name in fated(surface, "handled") if name not in FAILURES],
)
def test_handled_types_are_named_in_the_sources(surface, name):
    assert named(name, sources(surface))


# The outcome of events, tested.


def items_of(event, source):
    return list(recover([json.dumps(event).encode() + b"\n"], source=source))


@pytest.mark.parametrize("name", fated("openai_responses.events", "passed"))
def test_a_passed_event_is_an_opaque_item(name):
    event = {"type": name, "sequence_number": 1, "item_id": "x", "output_index": 0}
    opaque = [item for item in items_of(event, "openai-responses") if isinstance(item, AgentUnrecognized)]
    assert [json.loads(bytes(item.event)) for item in opaque] == [event]


@pytest.mark.parametrize("name", FAILURES)
def test_a_failed_stream_reports_the_failure(name):
    errors = [item for item in items_of({name: {"message": "Too much."}}, "bedrock-converse") if hasattr(item, "code")]
    assert [(item.code, item.message) for item in errors] == [(name, "Too much.")]


# The outcome of blocks, tested.

FOUND = [{"type": "text", "text": "Kafka is a log."}]
RAN = {"id": "srvtoolu_1", "name": "web_search", "input": {}}
RAN_BY_MCP = RAN | {"server_name": "docs"}
SEARCH = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
# Blocks that are sent back to their own provider unchanged: an example of each, and the role of its turn.
PASSED = {
    "anthropic.content": {
        "server_tool_use": ("assistant", RAN),
        "mcp_tool_use": ("assistant", RAN_BY_MCP),
        **{
            name: ("assistant", {"tool_use_id": "srvtoolu_1", "content": []})
            for name in fated("anthropic.content", "passed")
            if name.endswith("_tool_result")
        },
        "tool_search_tool_result": (
            "assistant",
            {
                "tool_use_id": "srvtoolu_1",
                "content": {"type": "tool_search_tool_search_result", "tool_references": []},
            },
        ),
        "compaction": ("assistant", {"content": "So far."}),
        "container_upload": ("user", {"file_id": "file_1"}),
        "search_result": ("user", {"source": "s", "title": "t", "content": FOUND}),
        "fallback": ("assistant", {"from": {"model": "claude-opus-5"}, "to": {"model": "claude-haiku-5"}}),
        "mcp_tool_listing": ("assistant", {"mcp_server_name": "docs", "tools": []}),
    },
    "openai_chat.parts": {"input_audio": ("user", {"input_audio": {"data": "AAAA", "format": "wav"}})},
    "gemini.parts": {
        "fileData": ("user", {"fileUri": "https://example.org/a", "mimeType": "video/mp4"}),
        "executableCode": ("model", {"language": "PYTHON", "code": "1"}),
        "codeExecutionResult": ("model", {"outcome": "OUTCOME_OK", "output": "1"}),
        "toolCall": ("model", {"toolType": "GOOGLE_SEARCH_WEB", "id": "a"}),
        "toolResponse": ("model", {"toolType": "GOOGLE_SEARCH_WEB", "id": "a"}),
        "videoMetadata": ("user", {"fps": 1}),
        "mediaResolution": ("user", {"level": "MEDIA_RESOLUTION_LOW"}),
        "audioMetadata": ("user", {"startOffset": "1s"}),
        "documentMetadata": ("user", {"startPage": 2}),
        "mediaProcessing": ("user", "AGENTIC"),
        "spreadsheetMetadata": ("user", {"sheetIndex": 1}),
    },
    "converse.content": {
        "cachePoint": ("user", {"type": "default"}),
        "guardContent": ("user", {"text": {"text": "Kafka is a log."}}),
        "citationsContent": ("assistant", {"content": [{"text": "Kafka is a log."}], "citations": []}),
        "searchResult": ("user", {"source": "s", "title": "t", "content": [{"text": "Kafka is a log."}]}),
        "video": ("user", {"format": "mp4", "source": {"bytes": "AAAA"}}),
        "audio": ("user", {"format": "mp3", "source": {"bytes": "AAAA"}}),
    },
}
# Members of a part that describe another member, and have no meaning alone.
BESIDE = {
    name: {"fileData": {"fileUri": "https://example.org/a"}}
    for name in (
        "audioMetadata", "documentMetadata", "mediaProcessing", "mediaResolution", "spreadsheetMetadata",
        "videoMetadata",
    )
}  # fmt: skip
TARGETS = {
    "anthropic.content": ("anthropic", "anthropic", None),
    "openai_chat.parts": ("openai-chat", "openai-chat", "gpt-4o-audio-preview"),
    "openai_responses.items": ("openai-responses", "openai-responses", None),
    "gemini.parts": ("gemini", "gemini", None),
    "converse.content": ("bedrock-converse", "bedrock-converse", "us.amazon.nova-pro-v1:0"),
}


def tried(surface, name, role, value):
    """Return the body of a history with such a block, and the codes of the fixes."""
    target, source, model = TARGETS[surface]
    block = {**BESIDE.get(name, {}), name: value} if named_by_member(surface) else {"type": name, **value}
    blocks = [block]
    if name in {"server_tool_use", "mcp_tool_use"}:
        result = "mcp_tool_result" if name == "mcp_tool_use" else "web_search_tool_result"
        blocks.append({"type": result, "tool_use_id": RAN["id"], "content": []})
    elif role == "assistant" and "tool_use_id" in value:
        by_mcp = name == "mcp_tool_result"
        blocks.insert(0, {"type": "mcp_tool_use", **RAN_BY_MCP} if by_mcp else {"type": "server_tool_use", **RAN})
    key, text = ("parts", {"text": "So."}) if target == "gemini" else ("content", {"type": "text", "text": "So."})
    text = {"text": "So."} if named_by_member(surface) else text
    turn = {"role": role, key: [*blocks, text]}
    messages = [turn] if role == "user" else [{"role": "user", key: [text]}, turn, {"role": "user", key: [text]}]
    document = {"contents" if target == "gemini" else "messages": messages} | ({"model": model} if model else {})
    # A search stays where a tool searches.
    document |= {"tools": [SEARCH]} if name == "tool_search_tool_result" else {}
    done = normalize(json.dumps(document).encode(), to=target, source=source)
    return done.body.decode(), [fix.code for fix in done.fixes]


def named_by_member(surface):
    return surface in {"gemini.parts", "converse.content"}


@pytest.mark.parametrize(("surface", "name"), [(surface, name) for surface in PASSED for name in PASSED[surface]])
def test_passed_blocks_are_sent_back_unchanged(surface, name):
    role, value = PASSED[surface][name]
    body, codes = tried(surface, name, role, value)
    assert f'"{name}"' in body
    assert codes == []


@pytest.mark.parametrize("surface", [*PASSED, "openai_responses.items"])
def test_passed_blocks_are_in_the_table_of_provider_specific_types(surface):
    own = {each.kind for each in NATIVE_TYPES if each.provider == TARGETS[surface][0]}
    assert set(fated(surface, "passed")) - own == set()


def test_the_table_has_only_types_that_a_library_knows():
    listed = {name for surface, (provider, _, _) in TARGETS.items() for name in LISTED[surface]}
    assert {each.kind for each in NATIVE_TYPES} - listed == {"custom"}  # a kind of call


@pytest.mark.parametrize("surface", PASSED)
def test_every_passed_block_is_tested(surface):
    assert PASSED[surface].keys() == set(fated(surface, "passed"))


@pytest.mark.parametrize(
    ("surface", "name"),
    [
        (surface, name)
        for surface in ("anthropic.content", "gemini.parts", "converse.content")
        for name in fated(surface, "dropped")
    ],
)
def test_dropped_blocks_are_recorded(surface, name):
    for role in ("user", "model" if surface == "gemini.parts" else "assistant"):
        body, codes = tried(surface, name, role, {"x": 1})
        assert f'"{name}"' not in body
        assert codes == ["unknown_dropped"]
