"""Requests made from the types of the providers' client libraries: every member, and every branch of every union.

A type is read as a JSON Schema. An object has one example with its required members alone, and one for each example
of each of its members. A union has the examples of all branches, a Literal all values. So a request differs from a
plain one in one place, which is its name (``tool_use.toolset_name``). The call, the result or the turn that a block
needs next to it is added here.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sdk_types import request_schemas


class Example(NamedTuple):
    """A value of a type, and the place in the type where it differs from the plain value."""

    place: str
    value: Any


class Request(NamedTuple):
    place: str
    body: dict[str, Any]


URL = "https://example.org/a"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
GIF = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
JPEG = (
    "/9j/4AAQSkZJRgABAQEASABIAAD/2wBDAP//////////////////////////////////////////////////////////////////////////////"
    "////////wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAA//EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AN//Z"
)
PDF = "JVBERi0xLjQKJSVFT0YK"
# Data of a media type. The repair looks at the first bytes.
DATA = {
    "image/png": PNG,
    "image/gif": GIF,
    "image/jpeg": JPEG,
    "image/webp": "UklGRhoAAABXRUJQVlA4TA0AAAAvAAAAEAcQERGIiP4HAA==",
    "application/pdf": PDF,
    "text/plain": "a",
}
# A schema that every provider compiles, also where it is strict.
OBJECT = {"type": "object", "properties": {}, "additionalProperties": False}
# Values of texts and numbers by the member's name. A text that is not listed has its member's name as its value.
VALUES = {
    "arguments": "{}",
    "bucketOwner": "123456789012",
    "budget_tokens": 1024,
    "bytes": PNG,
    "data": PNG,
    "file_data": f"data:application/pdf;base64,{PDF}",
    "file_url": URL,
    "fileUri": URL,
    "image_url": URL,
    "input_schema": OBJECT,
    "max_completion_tokens": 4096,
    "max_output_tokens": 4096,
    "max_tokens": 4096,
    "maxOutputTokens": 4096,
    "mimeType": "image/png",
    "parameters": OBJECT,
    "redactedContent": PNG,
    "schema": OBJECT,
    "server_url": URL,
    "thoughtSignature": PNG,
    "uri": "s3://bucket/key",
    "url": URL,
}
# Members that the API requires and the library does not. Several lists are alternatives; each is tried.
NEEDED: Mapping[str, Sequence[Sequence[str]]] = {
    "Blob": [["data", "mimeType"]],
    "CitationsContentBlock": [["content"]],
    "CodeExecutionResult": [["outcome"]],
    "ExecutableCode": [["code", "language"]],
    "FileData": [["fileUri"]],
    "FileFile": [["file_id"], ["file_data", "filename"]],
    "FunctionCall": [["name"]],
    # `Missing required parameter: 'input[1].call_id'.` (RSP-16b)
    "FunctionCallOutput": [["call_id"]],
    "FunctionDeclaration": [["name"]],
    "FunctionResponse": [["name", "response"]],
    "FunctionResponseBlob": [["data", "mimeType"]],
    "FunctionResponseFileData": [["fileUri"]],
    "FunctionResponsePart": [["inlineData"], ["fileData"]],
    "ReasoningTextBlock": [["signature"]],  # for Claude (BED-18)
    "ResponseComputerToolCallOutputScreenshotParam": [["image_url"], ["file_id"]],
    "ResponseInputFileContentParam": [["file_id"], ["file_url"], ["file_data", "filename"]],
    "ResponseInputFileParam": [["file_id"], ["file_url"], ["file_data", "filename"]],
    "ResponseInputImageContentParam": [["image_url"], ["file_id"]],
    "ResponseInputImageParam": [["image_url"], ["file_id"]],
    "ToolCall": [["toolType"]],
    "ToolResponse": [["toolType"]],
}
# Members that contain a whole tool: the tools of a request are walked in full, here each kind is tried once.
BRIEF = frozenset({"definition"})


def examples(
    node: dict[str, Any], root: dict[str, Any], name: str = "", above: tuple[str, ...] = ()
) -> Iterator[Example]:
    """Return the examples of a type, the plain one first; a type nested in itself has none.

    Args:
        node: the type.
        root: the schema that contains it.
        name: the member whose type it is.
        above: the types that contain it.
    """
    while "$ref" in node:
        title = node["$ref"].rpartition("/")[2]
        if title in above:
            return
        above, node = (*above, title), root["$defs"][title]
    branches = node.get("anyOf") or node.get("oneOf")
    if branches:
        for branch in branches:
            found = examples(branch, root, name, above)
            yield from [next(found)] if name in BRIEF and branch.get("type") != "null" else found
    elif "const" in node:
        yield Example("", node["const"])
    elif "enum" in node:
        yield from (Example(f"={value}", value) for value in node["enum"])
    elif "properties" in node:
        yield from _objects(node, root, above)
    elif node.get("type") == "object":
        inner = node.get("additionalProperties")
        if isinstance(inner, dict):
            yield from (Example(f".*{place}", {"a": value}) for place, value in examples(inner, root, name, above))
        else:
            yield Example("", VALUES.get(name, {"a": 1}))
    elif node.get("type") == "array":
        listed = [Example(f"[]{place}", [value]) for place, value in examples(node.get("items", {}), root, name, above)]
        yield from listed or [Example("", [])]
    elif node.get("type") == "boolean":
        yield from (Example(f"={value}", value) for value in (True, False))
    elif node.get("type") != "null":
        plain = {"string": name or "a", "integer": 1, "number": 1}.get(node.get("type"), {"a": 1})
        yield Example("", VALUES.get(name, plain))


def _objects(node: dict[str, Any], root: dict[str, Any], above: tuple[str, ...]) -> Iterator[Example]:
    members, title = node["properties"], node.get("title", "").removeprefix("Beta")
    ways = NEEDED.get(title, [[]])
    either = {name for way in ways for name in way} if len(ways) > 1 else set()
    for way in ways:
        required = [*node.get("required", ()), *way]
        plain: dict[str, Any] = {}
        for name in required:
            found = next(examples(members[name], root, name, above), None)
            if found is None:
                return
            plain[name] = found.value
        # The name of the object: its type, or its only member.
        kind = f".{plain['type']}" if isinstance(plain.get("type"), str) else ""
        only = not kind and len(members) == 1
        kind = f".{required[0]}" if only and required else kind
        yield Example(f"{kind}({'+'.join(way)})" if either else kind, _with_data(plain))
        for name, member in members.items():
            if name in either and name not in required:
                continue
            for at, (place, value) in enumerate(examples(member, root, name, above)):
                if at or name not in required:
                    where = f".{name}{place}" if only else f"{kind}.{name}{place}"
                    yield Example(where, _with_data(plain | {name: value}))


def _with_data(value: dict[str, Any]) -> dict[str, Any]:
    """Return a media value whose data match its declared type."""
    named = value.get("media_type") or value.get("mimeType")
    if named in DATA and "data" in value:
        return value | {"data": DATA[named]}
    source = value.get("source")
    if "format" in value and isinstance(source, dict) and "bytes" in source:
        data = DATA.get(f"image/{value['format']}", PDF if value["format"] == "pdf" else "YQ==")
        return value | {"source": {"bytes": data}}
    return value


@cache
def requests(target: str) -> list[Request]:
    """Return the requests of a target without duplicates: one per example of a member, of a message and of a part."""
    found: dict[str, Request] = {}
    for root in request_schemas(target):
        for each in WALKS[target](root):
            found.setdefault(json.dumps(each.body, sort_keys=True), each)
    return list(found.values())


def _heads(
    root: dict[str, Any], plain: dict[str, Any], beside: Mapping[str, dict[str, Any]], without: Collection[str]
) -> Iterator[Request]:
    """Return the plain request with each example of each head member.

    ``beside`` has members that the head needs with it.
    """
    for name, node in root["properties"].items():
        if name not in without:
            for place, value in examples(node, root, name):
                yield Request(f"{name}{place}", plain | beside.get(name, {}) | {name: value})


def _listed(root: dict[str, Any], name: str) -> Iterator[Example]:
    """Return the examples of the entries of a list in the request."""
    for place, value in examples(root["properties"][name], root, name):
        if isinstance(value, list):
            yield Example(f"{name}{place}", value[0])


# Anthropic Messages.

_ASKED = {"role": "user", "content": "Hello."}
_THEN = {"role": "user", "content": "Go on."}
_ANTHROPIC = {"model": "claude-opus-4-8", "max_tokens": 4096, "messages": [_ASKED]}
# The provider's server-side calls, by the type of their result.
_SERVED = {
    "web_search_tool_result": "web_search",
    "web_fetch_tool_result": "web_fetch",
    "code_execution_tool_result": "code_execution",
    "bash_code_execution_tool_result": "bash_code_execution",
    "text_editor_code_execution_tool_result": "text_editor_code_execution",
    "tool_search_tool_result": "tool_search_tool_regex",
    "advisor_tool_result": "advisor",
}
_RESULTS = {name: kind for kind, name in _SERVED.items()} | {"tool_search_tool_bm25": "tool_search_tool_result"}
# Blocks of the assistant; all others except text are the user's.
_ASSISTANTS = frozenset(_SERVED) | {
    "thinking", "redacted_thinking", "tool_use", "server_tool_use", "mcp_tool_use", "mcp_tool_result", "compaction",
    "mcp_tool_listing", "fallback",
}  # fmt: skip
_SYSTEMS = frozenset({"tool_addition", "tool_removal"})


def _anthropic(root: dict[str, Any]) -> Iterator[Request]:
    tools = {"tools": [{"name": "name", "input_schema": OBJECT}]}
    yield from _heads(root, _ANTHROPIC, {"tool_choice": tools}, {"messages", "model", "betas"})
    for place, message in _listed(root, "messages"):
        block = message.get("content")
        block = block[0] if isinstance(block, list) else None
        kind = block["type"] if block else "text"
        if kind == "text" or message["role"] == _role_of(kind):
            for said in _with_content(message):
                messages = _anthropic_messages(said, block)
                yield Request(f"{place} ({message['role']})", _ANTHROPIC | _searched(messages) | {"messages": messages})


def _searched(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The tools that a search for tools, and a reference to one, must have in the request (ANT-48, ANT-48b)."""
    text = json.dumps(messages)
    names = sorted(set(re.findall(r'"tool_name": "([^"]*)"', text)))
    tools: list[dict[str, Any]] = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    if "tool_search_tool_" in text:
        tools.append({"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"})
    return {"tools": tools} if tools else {}


def _with_content(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return variants of a system message with content, settings, or both; the types reject one with neither."""
    if "content" in message:
        return [message]
    said = message | {"content": "Be brief."}
    return [message, said] if message.get("output_config") else [said]


def _role_of(kind: str) -> str:
    return "assistant" if kind in _ASSISTANTS else "system" if kind in _SYSTEMS else "user"


def _anthropic_messages(message: dict[str, Any], block: dict[str, Any] | None) -> list[dict[str, Any]]:
    match block:
        case {"type": "tool_use"}:
            caller = block.get("caller", {}).get("tool_id")
            found = {"type": "tool_result", "tool_use_id": block["id"], "content": "a"}
            ran = {"type": "server_tool_use", "id": caller, "name": "code_execution", "input": {}}
            message = message | {"content": [ran, block] if caller else [block]}
            return [_ASKED, message, {"role": "user", "content": [found]}]
        case {"type": "tool_result"}:
            call = {"type": "tool_use", "id": block["tool_use_id"], "name": "name", "input": {}}
            return [_ASKED, {"role": "assistant", "content": [call]}, message]
        case {"type": "server_tool_use"}:
            kind = _RESULTS[block["name"]]
            found = {
                "type": kind,
                "tool_use_id": block["id"],
                "content": {"type": f"{kind}_error", "error_code": "unavailable"},
            }
            message = message | {"content": [block, found]}
        case {"type": "mcp_tool_use"}:
            message = message | {
                "content": [block, {"type": "mcp_tool_result", "tool_use_id": block["id"], "content": "a"}]
            }
        case {"type": "mcp_tool_result"}:
            call = {"type": "mcp_tool_use", "id": block["tool_use_id"], "name": "name", "server_name": "a", "input": {}}
            message = message | {"content": [call, block]}
        case {"type": kind} if kind in _SERVED:
            call = {"type": "server_tool_use", "id": block["tool_use_id"], "name": _SERVED[kind], "input": {}}
            message = message | {"content": [call, block]}
        case {"type": "thinking" | "redacted_thinking"}:
            message = message | {"content": [block, {"type": "text", "text": "So."}]}
    return [_ASKED, message, _THEN] if message["role"] == "assistant" else [_ASKED, message]


# OpenAI Chat Completions.

_CHAT = {"model": "gpt-4o-audio-preview", "messages": [_ASKED]}


def _chat(root: dict[str, Any]) -> Iterator[Request]:
    tool = {"type": "function", "function": {"name": "name", "parameters": OBJECT}}
    function = {"functions": [tool["function"]]}
    tools = {"tools": [tool]}
    beside = {"tool_choice": tools, "parallel_tool_calls": tools, "function_call": function}
    for request in _heads(root, _CHAT, beside, {"messages", "model"}):
        for tool in request.body.get("tools", ()):
            # Strict mode takes closed objects only (OAI-24).
            if tool.get("function", {}).get("strict") is True:
                tool["function"]["parameters"] = OBJECT | {"additionalProperties": False}
        yield request
    for place, message in _listed(root, "messages"):
        yield Request(f"{place} ({message['role']})", _CHAT | {"messages": _chat_messages(message)})


def _chat_messages(message: dict[str, Any]) -> list[dict[str, Any]]:
    function = {"name": "name", "arguments": "{}"}
    match message:
        case {"role": "assistant", "tool_calls": [call]}:
            return [_ASKED, message, {"role": "tool", "tool_call_id": call["id"], "content": "a"}]
        case {"role": "assistant", "function_call": call}:
            return [_ASKED, message, {"role": "function", "name": call["name"], "content": "a"}]
        case {"role": "assistant"}:
            is_said = message.keys() & {"content", "refusal", "audio"}
            return [_ASKED, message if is_said else message | {"content": "So."}, _THEN]
        case {"role": "tool"}:
            calls = [{"type": "function", "id": message["tool_call_id"], "function": function}]
            return [_ASKED, {"role": "assistant", "content": None, "tool_calls": calls}, message]
        case {"role": "function"}:
            return [_ASKED, {"role": "assistant", "content": None, "function_call": function}, message]
    return [_ASKED, message]


# OpenAI Responses.

# The model that takes every level of effort but one.
_RESPONSES = {"model": "gpt-5.6-sol", "input": [_ASKED]}
_SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "So.", "annotations": []}],
}


def _responses(root: dict[str, Any]) -> Iterator[Request]:
    tools = {"tools": [{"type": "function", "name": "name", "parameters": {"type": "object"}, "strict": False}]}
    in_json = {"input": [{"role": "user", "content": "Answer in JSON."}]}  # RSP-21c
    beside = {"tool_choice": tools, "parallel_tool_calls": tools, "text": in_json}
    yield from _heads(root, _RESPONSES, beside, {"input", "model", "betas"})
    for place, item in _listed(root, "input"):
        for role in _roles_of(item):
            said = item | {"role": role} if role else item
            yield Request(f"{place} ({role})" if role else place, _RESPONSES | {"input": _items(said)})


def _roles_of(item: dict[str, Any]) -> tuple[str, ...]:
    """Return the roles whose messages may have a part; the assistant writes no image and no file (RSP-12)."""
    if item.get("role") != "user":
        return (item.get("role", ""),)
    part = item["content"][0] if isinstance(item["content"], list) else {"type": "input_text"}
    said = part["type"] == "input_text" and "status" not in item and "agent" not in item
    return ("user", "system", "developer", "assistant") if said else ("user", "system", "developer")


# Calls by their outputs.
_CALLS = {
    "function_call_output": {"type": "function_call", "name": "name", "arguments": "{}"},
    "custom_tool_call_output": {"type": "custom_tool_call", "name": "name", "input": "a"},
    "shell_call_output": {"type": "shell_call", "action": {"commands": ["ls"]}},
    "apply_patch_call_output": {
        "type": "apply_patch_call",
        "status": "completed",
        "operation": {"type": "delete_file", "path": "a"},
    },
    "computer_call_output": {
        "type": "computer_call",
        "id": "cu_1",
        "status": "completed",
        "pending_safety_checks": [],
        "action": {"type": "screenshot"},
    },
    "tool_search_output": {"type": "tool_search_call", "arguments": {}, "execution": "client"},
    "program_output": {"type": "program", "id": "prog_1", "code": "1", "fingerprint": "a"},
    "multi_agent_call_output": {"type": "multi_agent_call", "action": "spawn_agent", "arguments": "{}"},
}
_OUTPUTS = {
    "function_call": {"type": "function_call_output", "output": "a"},
    "custom_tool_call": {"type": "custom_tool_call_output", "output": "a"},
    "shell_call": {
        "type": "shell_call_output",
        "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
    },
    "apply_patch_call": {"type": "apply_patch_call_output", "status": "completed"},
    "computer_call": {
        "type": "computer_call_output",
        "output": {"type": "computer_screenshot", "image_url": URL},
    },
    "tool_search_call": {"type": "tool_search_output", "execution": "client", "status": "completed", "tools": []},
    "program": {"type": "program_output", "id": "prog_2", "result": "a", "status": "completed"},
    "multi_agent_call": {
        "type": "multi_agent_call_output",
        "action": "spawn_agent",
        "output": [{"type": "output_text", "text": "a"}],
    },
}
# Prefixes of ids, which the API checks (RSP-09).
_IDS = {
    "code_interpreter_call": "ci_1",
    "compaction": "cmp_1",
    "custom_tool_call": "ctc_1",
    "file_search_call": "fs_1",
    "function_call": "fc_1",
    "image_generation_call": "ig_1",
    "mcp_call": "mcp_1",
    "mcp_list_tools": "mcpl_1",
    "message": "msg_1",
    "reasoning": "rs_1",
    "tool_search_call": "tsc_1",
    "tool_search_output": "tso_1",
    "web_search_call": "ws_1",
}


def _items(item: dict[str, Any]) -> list[dict[str, Any]]:
    kind = item.get("type", "message" if "role" in item else "item_reference")
    if "id" in item:
        item = item | {"id": _IDS.get(kind, "id_1")}
    call_id = {} if item.get("call_id") is None else {"call_id": item["call_id"]}
    match kind:
        case "local_shell_call":
            return [_ASKED, item, {"type": "local_shell_call_output", "id": item["call_id"], "output": "a"}]
        case "local_shell_call_output":
            action = {"type": "exec", "command": ["ls"], "env": {}}
            call = {
                "type": "local_shell_call",
                "id": "lsh_1",
                "call_id": item["id"],
                "status": "completed",
                "action": action,
            }
            return [_ASKED, call, item]
        case "mcp_approval_request":
            return [_ASKED, item, {"type": "mcp_approval_response", "approval_request_id": item["id"], "approve": True}]
        case "mcp_approval_response":
            asked = {"type": "mcp_approval_request", "id": item["approval_request_id"], "name": "name"}
            return [_ASKED, asked | {"server_label": "a", "arguments": "{}"}, item]
        case "reasoning":
            return [_ASKED, item, _SAID, _THEN]
    if kind in _OUTPUTS and call_id:
        return [_ASKED, item, _OUTPUTS[kind] | call_id]
    if kind in _CALLS and call_id:
        return [_ASKED, _CALLS[kind] | call_id, item]
    return [_ASKED, item, _THEN]


# Gemini generateContent.

_CONTENT = {"role": "user", "parts": [{"text": "Hello."}]}
_GEMINI = {"contents": [_CONTENT], "model": "gemini-3-pro-preview"}
# Members of model parts; members that describe a file or a text within its part.
_MODELS = frozenset(
    {"executableCode", "codeExecutionResult", "toolCall", "toolResponse", "thought", "thoughtSignature"}
)
_OF_FILES = frozenset(
    {
        "videoMetadata", "mediaResolution", "mediaProcessing", "documentMetadata", "spreadsheetMetadata",
        "audioMetadata",
    }
)  # fmt: skip
_OF_TEXTS = frozenset({"thought", "thoughtSignature", "partMetadata", "speechMetadata", "audioTranscription"})


def _gemini(root: dict[str, Any]) -> Iterator[Request]:
    tools = {"tools": [{"functionDeclarations": [{"name": "name"}]}]}
    for request in _heads(root, _GEMINI, {"toolConfig": tools}, {"contents", "model"}):
        # A tool object without any member is not a tool.
        if request.body.get("tools") != [{}]:
            yield request
    for place, content in _listed(root, "contents"):
        # An empty part is rejected (GEM-06b).
        if content.get("parts", [{}])[0]:
            yield Request(place, _GEMINI | {"contents": _contents(content["parts"][0])})


def _contents(part: dict[str, Any]) -> list[dict[str, Any]]:
    name = next(iter(part), "text")
    called = (
        {key: part[name][key] for key in ("id", "name") if key in part[name]} if name.startswith("function") else {}
    )
    if name in _OF_FILES:
        part = {"fileData": {"fileUri": URL}} | part
    elif name in _OF_TEXTS:
        part = {"text": "a"} | part
    if name == "functionResponse":
        call = {"functionCall": called | {"args": {}}, "thoughtSignature": PNG}
        return [_CONTENT, {"role": "model", "parts": [call]}, {"role": "user", "parts": [part]}]
    if name == "functionCall":
        found = {"functionResponse": called | {"response": {"result": "a"}}}
        said = {"role": "model", "parts": [part | {"thoughtSignature": PNG}]}
        return [_CONTENT, said, {"role": "user", "parts": [found]}]
    if name in _MODELS:
        return [_CONTENT, {"role": "model", "parts": [part, {"text": "So."}]}, _CONTENT]
    return [{"role": "user", "parts": [part]}]


# Bedrock Converse.

_WORDS = {"role": "user", "content": [{"text": "Hello."}]}
_CONVERSE = {"modelId": "us.anthropic.claude-opus-4-8", "messages": [_WORDS]}
_TOOLED = {"toolConfig": {"tools": [{"toolSpec": {"name": "name", "inputSchema": {"json": OBJECT}}}]}}
_NOVA = {"modelId": "us.amazon.nova-pro-v1:0"}
# Both Claude (BED-24) and Nova (BED-25) reject a video in a result; for other models nothing is known.
_PEGASUS = {"modelId": "us.twelvelabs.pegasus-1-2-v1:0"}
_ASSISTANTS_BLOCKS = frozenset({"toolUse", "reasoningContent", "citationsContent"})
_SYSTEMS_BLOCKS = frozenset({"toolAddition", "toolRemoval"})


def _converse(root: dict[str, Any]) -> Iterator[Request]:
    root = {"$defs": root["$defs"], **root["$defs"]["ConverseRequest"]}
    for place, body in _heads(root, _CONVERSE, {}, {"messages", "modelId"}):
        # A breakpoint ends the prefix before it.
        ended = [{"text": "Be brief."}] if place.startswith("system[].cachePoint") else []
        # The types take any JSON for a schema, the service only one of an object (BED-38).
        for tool in body.get("toolConfig", {}).get("tools", ()):
            if "toolSpec" in tool:
                tool["toolSpec"]["inputSchema"]["json"] = OBJECT
        yield Request(place, body | {"system": [*ended, *body["system"]]} if ended else body)
    for place, message in _listed(root, "messages"):
        ((name, block),) = message["content"][0].items()
        role = message["role"]
        role = "assistant" if name in _ASSISTANTS_BLOCKS else "system" if name in _SYSTEMS_BLOCKS else role
        messages = _converse_messages(role, name, block)
        model = _NOVA if _is_novas(name, block) else {}
        model = _PEGASUS if name == "toolResult" and any("video" in part for part in block["content"]) else model
        yield Request(f"{place} {name} ({role})", _CONVERSE | _TOOLED | model | {"messages": messages})


def _is_novas(name: str, block: Any) -> bool:
    """Return True if only Nova takes a block: a video (BED-24), an image by location (BED-23), the service's tools."""
    if name == "toolResult" and not block.get("type"):
        return any(_is_novas(*part) for each in block["content"] for part in each.items())
    source = block.get("source") if isinstance(block, dict) else None
    is_kept = name == "image" and isinstance(source, dict) and "s3Location" in source
    return name == "video" or is_kept or (name.startswith("tool") and "type" in block)


def _converse_messages(role: str, name: str, block: dict[str, Any]) -> list[dict[str, Any]]:
    said = {"text": "a"}
    match name:
        case "toolUse":
            found = {"toolResult": {"toolUseId": block["toolUseId"], "content": [said]}}
            if "type" in block:
                found["toolResult"]["type"] = "server_tool_result"
                return [_WORDS, {"role": "assistant", "content": [{name: block}, found]}, _WORDS]
            return [_WORDS, {"role": "assistant", "content": [{name: block}]}, {"role": "user", "content": [found]}]
        case "toolResult":
            call = {"toolUse": {"toolUseId": block["toolUseId"], "name": "name", "input": {}}}
            if "type" in block:
                call["toolUse"]["type"] = "server_tool_use"
                return [_WORDS, {"role": "assistant", "content": [call, {name: block}]}, _WORDS]
            return [
                _WORDS,
                {"role": "assistant", "content": [call]},
                {"role": "user", "content": [{name: block}, said]},
            ]
        case "reasoningContent" | "citationsContent":
            return [_WORDS, {"role": "assistant", "content": [{name: block}, said]}, _WORDS]
        case "toolAddition" | "toolRemoval" | "text":
            message = {"role": role, "content": [{name: block}]}
            return [message] if role == "user" else [_WORDS, message, *([_WORDS] if role == "assistant" else [])]
    return [{"role": "user", "content": [said, {name: block}]}]


WALKS: dict[str, Callable[[dict[str, Any]], Iterator[Request]]] = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
    "bedrock-converse": _converse,
}
