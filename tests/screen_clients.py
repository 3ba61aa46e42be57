"""Models of two UI clients, AG-UI's HttpAgent 1.0 and AI SDK 7: the messages that they build from events.

They follow the rules of the packages' sources, and raise where a client would end with an error.
"""

import copy
import json

import msgspec

from reknit.pipeline.screens.content import CALLS, arguments, decoded, plain_text, readable_text
from reknit.topics.reducer import reduce


class ClientError(Exception):
    """The client would end with an error."""


def as_sent(events):
    """Return events as a client gets them: encoded, and decoded again."""
    return [json.loads(msgspec.json.encode(event)) for event in events]


def has_null(value):
    if isinstance(value, dict):
        return any(has_null(each) for name, each in value.items() if name not in {"value", "content", "metadata"})
    if isinstance(value, list):
        return any(map(has_null, value))
    return value is None


PAIRS = {
    "TEXT_MESSAGE": ("text", "messageId"),
    "TOOL_CALL": ("call", "toolCallId"),
    "REASONING_MESSAGE": ("reasoning", "messageId"),
    "REASONING": ("span", "messageId"),
}


class AgUiClient:
    """An ``HttpAgent``: its messages after any number of responses."""

    def __init__(self):
        self.messages = []
        self.ends = []

    def posted(self):
        return [(message["id"], message["role"]) for message in self.messages if message["role"] != "activity"]

    def respond(self, events):
        """Read one response."""
        response = AgUiResponse(self)
        for event in as_sent(events):
            response.read(event)
        return response

    def find(self, key):
        return next((message for message in self.messages if message["id"] == key), None)

    def calls(self):
        return {call["id"]: call for message in self.messages for call in message.get("toolCalls", ())}


class AgUiResponse:
    """One response: the client's checks live as long as it does."""

    def __init__(self, client):
        self.client, self.open, self.running = client, {}, None

    def read(self, event):
        if has_null({name: value for name, value in event.items() if name != "messages"}):
            raise ClientError(f"null in {event}")
        kind = event["type"]
        if kind == "RUN_STARTED":
            if self.running:
                raise ClientError("run is active")
            self.running = event["runId"]
            return
        if self.running is None and kind != "RUN_ERROR":
            raise ClientError(f"{kind} outside of a run")
        if kind == "RUN_FINISHED" and any(self.open.values()):
            raise ClientError(f"open: {self.open}")
        if kind in {"RUN_FINISHED", "RUN_ERROR"}:
            self.running = None
            self.open.clear()
            self.client.ends.append(event)
            return
        self._check(kind, event)
        getattr(self, "on_" + kind.lower(), lambda _event: None)(event)

    def _check(self, kind, event):
        name, _, act = kind.rpartition("_")
        if name not in PAIRS or act not in {"START", "CONTENT", "ARGS", "END"}:
            return
        what, field = PAIRS[name]
        key = event[field]
        opened = self.open.setdefault(what, {})
        if act == "START":
            if key in opened:
                raise ClientError(f"{key} is in progress")
            opened[key] = event.get("subagentRunId")
            return
        if key not in opened:
            raise ClientError(f"{kind} of {key}, which is not open")
        if "subagentRunId" in event and event["subagentRunId"] != opened[key]:
            raise ClientError(f"{key} belongs to another sub-agent")
        if act == "END":
            del opened[key]

    def _start(self, event, role):
        message = self.client.find(event["messageId"])
        if message is None:
            message = {"id": event["messageId"], "role": role, "content": ""}
            self.client.messages.append(message)
        merge(message, event)

    def _add(self, event):
        message = self.client.find(event["messageId"])
        if message is None:
            raise ClientError(f"no message {event['messageId']}")
        message["content"] += event.get("delta", "")
        merge(message, event)

    def on_text_message_start(self, event):
        self._start(event, event.get("role", "assistant"))

    def on_reasoning_message_start(self, event):
        self._start(event, "reasoning")

    on_text_message_content = on_text_message_end = _add
    on_reasoning_message_content = on_reasoning_message_end = _add

    def on_tool_call_start(self, event):
        key = event["toolCallId"]
        call = self.client.calls().get(key)
        if call is None:
            call = {"id": key, "type": "function", "function": {"name": event["toolCallName"], "arguments": ""}}
            self.client.messages.append({"id": key, "role": "assistant", "toolCalls": [call]})
        merge(call, event)

    def on_tool_call_args(self, event):
        call = self.client.calls()[event["toolCallId"]]
        call["function"]["arguments"] += event.get("delta", "")
        merge(call, event)

    on_tool_call_end = on_tool_call_args

    def on_tool_call_result(self, event):
        messages, key = self.client.messages, event["toolCallId"]
        at = next(
            (n for n, each in enumerate(messages) if any(call["id"] == key for call in each.get("toolCalls", ()))), None
        )
        if at is None:
            raise ClientError(f"no call {key}")
        at += 1
        while at < len(messages) and messages[at]["role"] == "tool":
            at += 1
        message = {"id": event["messageId"], "role": "tool", "toolCallId": key, "content": event["content"]}
        merge(message, event)
        messages.insert(at, message)

    def on_activity_snapshot(self, event):
        message = self.client.find(event["messageId"])
        if message is None:
            message = {"id": event["messageId"], "role": "activity"}
            self.client.messages.append(message)
        message |= {"activityType": event["activityType"], "content": event["content"]}

    def on_messages_snapshot(self, event):
        new = {message["id"]: copy.deepcopy(message) for message in event["messages"]}
        if len(new) != len(event["messages"]):
            raise ClientError("an id twice in a snapshot")
        has_reasoning = any(message["role"] == "reasoning" for message in new.values())
        owns_all = event.get("metadata", {}).get("@ag-ui/client", {}).get("authoritativeActivityTypes", ()) is None
        has_activity = owns_all or any(message["role"] == "activity" for message in new.values())
        kept = []
        for message in self.client.messages:
            if message["id"] in new:
                kept.append(new.pop(message["id"]))
            elif (message["role"] == "reasoning" and not has_reasoning) or (
                message["role"] == "activity" and not has_activity
            ):
                kept.append(message)
        self.client.messages[:] = [*kept, *new.values()]


def merge(target, event):
    if "metadata" in event:
        target["metadata"] = {**target.get("metadata", {}), **event["metadata"]}


KNOWN_CHUNKS = {
    *("start", "finish", "message-metadata", "reset-step", "source-url"),
    *("text-start", "text-delta", "text-end", "reasoning-start", "reasoning-delta", "reasoning-end"),
    *("tool-input-start", "tool-input-delta", "tool-input-available", "tool-input-error"),
    *("tool-output-available", "tool-output-error"),
}
FINISHES = {"stop", "length", "content-filter", "tool-calls", "error", "other"}


class AiSdkClient:
    """A ``Chat`` of AI SDK 7 that is resumed: its messages after any number of responses."""

    def __init__(self, *, knows_reset=True):
        self.messages, self.knows_reset = [], knows_reset

    def respond(self, chunks):
        """Read one response of a resumed stream."""
        response = AiSdkResponse(self)
        for chunk in as_sent(chunks):
            response.read(chunk)
        return response


class AiSdkResponse:
    """One response."""

    def __init__(self, client):
        self.client, self.message, self.active = client, None, {}

    def read(self, chunk):
        kind = chunk["type"]
        if not (kind in KNOWN_CHUNKS or kind.startswith("data-")) or (
            kind == "reset-step" and not self.client.knows_reset
        ):
            raise ClientError(f"unknown chunk {kind}")
        if kind.startswith("data-"):
            self._data(chunk)
            return
        if kind != "start" and self.message is None:
            raise ClientError(f"{kind} before a start")
        getattr(self, "on_" + kind.replace("-", "_"))(chunk)

    def on_start(self, chunk):
        found = next((each for each in self.client.messages if each["id"] == chunk["messageId"]), None)
        if found is None:
            found = {"id": chunk["messageId"], "role": "assistant", "parts": []}
            self.client.messages.append(found)
        elif self.message is not None:
            raise ClientError("a second start of the same message")
        found["parts"] = []
        found.pop("metadata", None)
        self.message, self.active = found, {}

    def _begin(self, chunk, kind):
        part = {"type": kind, "text": "", "state": "streaming"}
        if "providerMetadata" in chunk:
            part["providerMetadata"] = chunk["providerMetadata"]
        self.message["parts"].append(part)
        self.active[kind, chunk["id"]] = part

    def _part(self, chunk, kind):
        if (kind, chunk["id"]) not in self.active:
            raise ClientError(f"{chunk['type']} for missing part {chunk['id']}")
        part = self.active[kind, chunk["id"]]
        if "providerMetadata" in chunk:
            part["providerMetadata"] = chunk["providerMetadata"]
        return part

    def on_text_start(self, chunk):
        self._begin(chunk, "text")

    def on_reasoning_start(self, chunk):
        self._begin(chunk, "reasoning")

    def on_text_delta(self, chunk):
        self._part(chunk, "text")["text"] += chunk["delta"]

    def on_reasoning_delta(self, chunk):
        self._part(chunk, "reasoning")["text"] += chunk["delta"]

    def on_text_end(self, chunk):
        self._part(chunk, "text")["state"] = "done"
        del self.active["text", chunk["id"]]

    def on_reasoning_end(self, chunk):
        self._part(chunk, "reasoning")["state"] = "done"
        del self.active["reasoning", chunk["id"]]

    def _tool(self, chunk, state, **members):
        part = next((each for each in self.message["parts"] if each.get("toolCallId") == chunk["toolCallId"]), None)
        if part is None:
            if "toolName" not in chunk:
                raise ClientError(f"No tool invocation found for tool call ID {chunk['toolCallId']}")
            part = {"type": "dynamic-tool", "toolName": chunk["toolName"], "toolCallId": chunk["toolCallId"]}
            self.message["parts"].append(part)
        for name in ("output", "errorText", "rawInput"):
            part.pop(name, None)
        part |= {"state": state, **members}
        if "providerExecuted" in chunk:
            part["providerExecuted"] = chunk["providerExecuted"]
        if "providerMetadata" in chunk:
            part["callProviderMetadata"] = chunk["providerMetadata"]

    def on_tool_input_start(self, chunk):
        if not (chunk["dynamic"] and chunk["providerExecuted"]):
            raise ClientError("the browser would run the call")
        self._tool(chunk, "input-streaming", rawInput="")
        self.active["tool", chunk["toolCallId"]] = ""

    def on_tool_input_delta(self, chunk):
        key = "tool", chunk["toolCallId"]
        if key not in self.active:
            raise ClientError("tool-input-delta for missing call")
        self.active[key] += chunk["inputTextDelta"]
        part = next(each for each in self.message["parts"] if each.get("toolCallId") == chunk["toolCallId"])
        # The client parses a partial input; here it stays text until it is whole.
        part["rawInput"] = part["input"] = self.active[key]
        part["state"] = "input-streaming"

    def on_tool_input_available(self, chunk):
        self._tool(chunk, "input-available", input=chunk["input"])

    def on_tool_input_error(self, chunk):
        self._tool(chunk, "output-error", input=chunk["input"], errorText=chunk["errorText"])

    def on_tool_output_available(self, chunk):
        self._tool(chunk, "output-available", output=chunk["output"])

    def on_tool_output_error(self, chunk):
        self._tool(chunk, "output-error", errorText=chunk["errorText"])

    def on_source_url(self, chunk):
        self.message["parts"].append(chunk)

    def _data(self, chunk):
        if self.message is None:
            raise ClientError("data before a start")
        same = (chunk["type"], chunk["id"])
        for part in self.message["parts"]:
            if (part["type"], part.get("id")) == same:
                part["data"] = chunk["data"]
                return
        self.message["parts"].append(chunk)

    def on_reset_step(self, _chunk):
        self.message["parts"].clear()
        self.active.clear()

    def on_message_metadata(self, chunk):
        deep_merge(self.message.setdefault("metadata", {}), chunk["messageMetadata"])

    def on_finish(self, chunk):
        if chunk.get("finishReason", "stop") not in FINISHES:
            raise ClientError("unknown finish reason")
        if "messageMetadata" in chunk:
            self.on_message_metadata(chunk)


def deep_merge(target, value):
    for name, each in value.items():
        if isinstance(each, dict) and isinstance(target.get(name), dict):
            deep_merge(target[name], each)
        else:
            target[name] = each


def wanted(items):
    """Return what every screen must show after these items: id, kind and content."""
    found = []
    for entry in reduce(items).entries:
        if entry.item_type in {"text", "thinking"}:
            found.append((entry.item_id, entry.item_type, entry.text))
        if entry.item_type in CALLS:
            found.append((entry.item_id, "call", arguments(entry)))
            if entry.result is not None:
                kind = "error" if entry.result.is_error else "result"
                found.append((entry.item_id, kind, readable_text(decoded(entry.result.content))))
    return found


def shown_by_ag_ui(client):
    found = []
    for message in client.messages:
        if message["id"].startswith(("result-", "reknit-clear")):
            continue
        kinds = {"assistant": "text", "reasoning": "thinking"}
        if message["role"] in kinds and "toolCalls" not in message:
            found.append((message["id"], kinds[message["role"]], message["content"]))
        found += [(call["id"], "call", call["function"]["arguments"]) for call in message.get("toolCalls", ())]
        if message["role"] == "tool" and message["id"].endswith(":result"):
            is_error = message["metadata"]["reknit"]["isError"]
            text = plain_text(message["content"])
            found.append((message["toolCallId"], "error" if is_error else "result", text))
    return found


def shown_by_ai_sdk(message, items):
    """Return what a message shows. A parsed input is compared as JSON, for the client keeps the parsed value only."""
    entries = {entry.item_id: entry for entry in reduce(items).entries}
    found = []
    for part in message["parts"]:
        if part["type"] in {"text", "reasoning"} and "providerMetadata" in part:
            key = part["providerMetadata"]["reknit"]["itemId"]
            found.append((key, "text" if part["type"] == "text" else "thinking", part["text"]))
        if part["type"] == "dynamic-tool":
            entry = entries.get(part["toolCallId"])
            found.append((part["toolCallId"], "call", _input_shown(part, entry)))
            if entry is None or entry.result is None:
                continue
            output = part.get("output", part.get("errorText"))
            kind = "error" if part["state"] == "output-error" else "result"
            found.append((part["toolCallId"], kind, output if isinstance(output, str) else readable_text(output)))
    return found


def _input_shown(part, entry):
    raw = part["rawInput"] if part["state"] == "input-streaming" else part.get("input", "")
    text = raw if isinstance(raw, str) else json.dumps(raw)
    if entry is None:
        return text
    whole = arguments(entry)
    try:
        return whole if json.loads(whole or "{}") == json.loads(text or "{}") else text
    except ValueError:
        return text
