"""Sessions of the stream side that are saved midway."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from left_sessions import ROOT, Json, Log, Sent, dumped, row

from reknit.topics import SESSION_ITEMS


def stream(values: Iterable[bytes | str | Json], source: str, run: str = "r1", **headers: str) -> list[Sent]:
    said = {"source": source, "run": run, **headers}
    return [(dumped(value), said) for value in values]


def ended(source: str, why: str = "0", run: str = "r1") -> Sent:
    return None, {"source": source, "run": run, "exit": why}


def policy(**fields: Any) -> Sent:
    return None, {"policy": json.dumps(fields)}


def sse(values: Iterable[Json | str]) -> list[bytes]:
    return [b"data: %b\n\n" % dumped(value) for value in values]


def messages_api(message_id: str = "msg_1") -> list[Json]:
    """An answer with a block of each kind."""
    blocks: list[tuple[Json, list[Json]]] = [
        (
            {"type": "thinking", "thinking": "", "signature": ""},
            [
                {"type": "thinking_delta", "thinking": "Let me "},
                {"type": "thinking_delta", "thinking": "see."},
                {"type": "signature_delta", "signature": "c2lnbmVk"},
            ],
        ),
        ({"type": "redacted_thinking", "data": "b3BhcXVl"}, []),
        (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": "I look "}, {"type": "text_delta", "text": "at 🙂 it."}],
        ),
        ({"type": "hologram", "beam": 1}, [{"type": "hologram_delta", "beam": 2}]),
        (
            {"type": "tool_use", "id": f"toolu_{message_id}", "name": "mcp__github__search", "input": {}},
            [{"type": "input_json_delta", "partial_json": part} for part in ('{"query', '": "a b"', "}")],
        ),
    ]
    usage = {"input_tokens": 9, "output_tokens": 1}
    head = {"id": message_id, "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": []}
    events: list[Json] = [{"type": "message_start", "message": head | {"stop_reason": None, "usage": usage}}]
    for index, (block, deltas) in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": "tool_use", "stop_sequence": None}
    return [
        *events,
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 30}},
        {"type": "message_stop"},
    ]


def cli(message_id: str = "msg_1", uuid: str = "u") -> list[Json]:
    """The same answer as the Claude CLI writes it: each event wrapped, each complete block repeated, and a result."""
    whole = [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "text", "text": "I look at 🙂 it."},
        {"type": "hologram", "beam": 1},
        {"type": "tool_use", "id": f"toolu_{message_id}", "name": "mcp__github__search", "input": {"query": "a b"}},
    ]
    tools = ["mcp__github__search"]
    lines: list[Json] = [{"type": "system", "subtype": "init", "session_id": "s1", "tools": tools, "model": "m"}]
    for event in messages_api(message_id):
        if event["type"] == "content_block_stop":
            message = {"id": message_id, "role": "assistant", "model": "m", "content": [whole[event["index"]]]}
            lines.append({"type": "assistant", "message": message, "parent_tool_use_id": None})
        lines.append({"type": "stream_event", "event": event, "parent_tool_use_id": None})
    answer = {"type": "tool_result", "tool_use_id": f"toolu_{message_id}", "content": "found"}
    lines.append({"type": "user", "message": {"role": "user", "content": [answer]}, "parent_tool_use_id": None})
    last = {"id": f"{message_id}b", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "Done."}]}
    lines.append({"type": "assistant", "message": last, "parent_tool_use_id": None})
    lines.append({"type": "result", "subtype": "success", "is_error": False, "result": "Done.", "num_turns": 2})
    return [line | {"uuid": f"{uuid}{at}", "session_id": "s1"} for at, line in enumerate(lines)]


def chat() -> list[Json | str]:
    def chunk(finish: str | None = None, **delta: Any) -> Json:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "gpt-5", "choices": [choice]}

    def tool(index: int, arguments: str, **rest: Any) -> Json:
        return chunk(tool_calls=[{"index": index, **rest, "function": {"arguments": arguments} | rest.pop("f", {})}])

    first = {"id": "call_1", "type": "function", "f": {"name": "ls"}}
    second = {"id": "call_2", "type": "function", "f": {"name": "cat"}}
    return [
        chunk(role="assistant", content=""),
        chunk(reasoning_content="Hm, "),
        chunk(reasoning_content="so."),
        chunk(content="I look "),
        chunk(content="there."),
        tool(0, "", **first),
        tool(0, '{"path": '),
        tool(0, '"/"}'),
        tool(1, '{"path"', **second),
        tool(1, ': "x"}'),
        chunk(finish="tool_calls"),
        {"id": "chatcmpl-1", "model": "gpt-5", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}},
        "[DONE]",
    ]


def gemini() -> list[Json]:
    def chunk(*parts: Json, **rest: Any) -> Json:
        candidate = {"index": 0, "content": {"role": "model", "parts": list(parts)}} | rest
        usage = {"promptTokenCount": 4, "candidatesTokenCount": 2}
        return {"candidates": [candidate], "responseId": "g1", "modelVersion": "gemini-3-pro", "usageMetadata": usage}

    return [
        chunk({"text": "Hm, ", "thought": True}),
        chunk({"text": "so.", "thought": True}),
        chunk({"text": "I look "}),
        chunk({"text": "there.", "thoughtSignature": "c2ln"}),
        chunk({"functionCall": {"name": "ls", "args": {"path": "/"}}, "thoughtSignature": "c2ln"}),
        chunk({"functionCall": {"name": "cat", "args": {"path": "x", "depth": 1.0}}}),
        chunk({"text": ""}, finishReason="STOP"),
    ]


def planner() -> list[Json]:
    spoken = (
        "I am Cascade and look into /opt/windsurf/log.\n"
        '<tool_call>{"name":"ls","arguments":{"path":"/opt/windsurf/bin","depth":1}}</tool_call>\nThat is all.'
    )
    return [
        {"type": "message_start", "id": "c1", "model": "swe-1"},
        {"type": "thinking_delta", "thinking": "Hm."},
        *[{"type": "text_delta", "text": spoken[at : at + 9]} for at in range(0, len(spoken), 9)],
        {"type": "done", "reason": "idle_done", "usage": {"inputTokens": 3, "outputTokens": 4}},
    ]


def recorded(source: str) -> list[list[Json | str]]:
    lines = (ROOT / "tests/vectors/provider_streams.jsonl").read_text().splitlines()
    rows = [found for found in map(json.loads, lines) if found["source"] == source]
    return [found["events"] for found in rows]


def streams() -> dict[str, list[list[bytes]]]:
    """Two streams of each source, as records of whole events."""
    converse = [[dumped(event) for event in events] for events in recorded("bedrock-converse")[:2]]
    chats, responses = recorded("openai-chat"), recorded("openai-responses")
    return {
        "claude-cli": [[dumped(line) for line in cli(name, name)] for name in ("msg_1", "msg_2")],
        "anthropic": [sse(messages_api()), sse(messages_api("msg_2"))],
        "bedrock-converse": converse,
        "cascade": [[dumped(event) for event in planner()]] * 2,
        "gemini": [sse(gemini()), sse(recorded("gemini")[0])],
        "openai-chat": [sse(chat()), sse(chats[0])],
        "openai-responses": [sse(responses[0]), sse(responses[1])],
        "vllm": [sse(chat()), sse(chats[1])],
    }


def events() -> Iterator[Json]:
    for source, (one, other) in streams().items():
        yield from _left_midway(source, one, other)
        yield _in_bytes(source, one)
    yield from _cli_sessions()
    yield from _waiting()
    yield _two_sources()


def _left_midway(source: str, one: list[bytes], other: list[bytes]) -> Iterator[Json]:
    """Runs saved wherever a new kind of item is open, at the end, or after it.

    Each continues, and a second run follows.
    """
    run = stream(one, source)
    after = [*stream(other, source, "r2"), ended(source, run="r2")]
    for place, what in _places(source, run):
        yield row(f"{source}: {what}", "events", run[:place], [*run[place:], ended(source)], batch=2)
    yield row(f"{source}: cut off", "events", [*run[: len(run) * 2 // 3], ended(source, "137")], after, batch=2)
    yield row(f"{source}: all said", "events", run, after, batch=5)
    yield row(f"{source}: over", "events", [*run, ended(source)], after, batch=5)


def _places(source: str, run: list[Sent]) -> Iterator[tuple[int, str]]:
    """Yield each place where a run first enters a new state, with the name of the state."""
    log = Log("events", {}, b"k")
    kinds: dict[str, str] = {}
    open_items: list[str] = []
    met: set[str] = set()
    for place, one in enumerate(run[:-1], start=1):
        for _, output in log.feed([one]):
            if output.topic != SESSION_ITEMS:
                continue
            item = json.loads(output.value or b"")
            name = item.get("item_id", "")
            if item["type"] == "item/started":
                kinds[name] = item["item_type"]
                open_items.append(name)
            elif item["type"] == "item/completed" and name in open_items:
                open_items.remove(name)
                if (what := f"after a {kinds[name]}") not in met:
                    met.add(what)
                    yield place, what
            elif item["type"] == "item/delta" and (what := f"in a {kinds[name]}") not in met:
                met.add(what)
                yield place, what
        if place == 1:
            yield place, "begun"


def _in_bytes(source: str, one: list[bytes]) -> Json:
    """A run in pieces that end inside events, one of them inside a character."""
    data = b"".join(part if part.endswith(b"\n") else part + b"\n" for part in one)
    cut = data.find("🙂".encode()) + 2 if "🙂".encode() in data else len(data) // 2
    halves = [[half[at : at + 97] for at in range(0, len(half), 97)] for half in (data[:cut], data[cut:])]
    before, then = (stream(pieces, source, framing="bytes") for pieces in halves)
    return row(f"{source}: cut inside an event", "events", before, [*then, ended(source)], batch=2)


def _cli_sessions() -> Iterator[Json]:
    """Cases that only the Claude CLI has: retries, sub-agents, repeated lines, several runs."""
    lines, second = cli("msg_1", "a"), cli("msg_2", "b")
    half = len(lines) // 2
    run = stream(lines, "claude-cli")
    yield row("claude-cli: a retry after a cut", "events", run[:half], [*run[1:], ended("claude-cli")])
    yield row("claude-cli: a retry that has begun", "events", [*run[:half], *run[1:6]], [*run[6:], ended("claude-cli")])
    yield row("claude-cli: lines that come again", "events", run[:half], [*run[half - 4 : half], *run[half:]])
    two = [*run, *stream(second[:half], "claude-cli", "r2")]
    again = stream(second[half - 3 :], "claude-cli", "r2")
    yield row("claude-cli: the second of two runs", "events", two, [*again, ended("claude-cli", run="r2")], batch=7)
    child = {"id": "sub_1", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "found it"}]}
    inner = {"type": "assistant", "message": child, "parent_tool_use_id": "toolu_msg_1", "uuid": "s1"}
    yield row("claude-cli: a sub-agent", "events", stream([*lines[:-2], inner], "claude-cli"), run[-2:])
    notice = {"type": "system", "subtype": "api_retry", "attempt": 1, "max_retries": 10, "error_status": 529}
    broken = [*lines[:half], notice, "stderr words", {"type": "no_such_type", "x": 1}]
    yield row("claude-cli: notices and odd lines", "events", stream(broken, "claude-cli"), [*run[1:], run[1]])
    unseen = [line for line in lines if line["type"] != "stream_event"]
    yield row("claude-cli: an answer that was never streamed", "events", stream(unseen[:4], "claude-cli"), run[-3:])


def _waiting() -> Iterator[Json]:
    """Finished turns that wait for the policy of their session, and sessions whose policy is known."""
    run = [*stream(cli(), "claude-cli"), ended("claude-cli")]
    yield row("policy: turns wait for it", "events", run, [policy(record_assistant=True)])
    yield row("policy: turns wait in vain", "events", run, [policy(record_assistant=False)])
    yield row("policy: recorded", "events", [policy(record_assistant=True), *run[:20]], run[20:])
    yield row("policy: not recorded", "events", [policy(), *run[:20]], run[20:])
    wish = {"record_assistant": True, "model": "claude-opus-4-1", "tools": ["ls"]}
    said_ = [*stream(planner(), "cascade"), ended("cascade")]
    for place in (6, 9, 12, len(said_) - 2):
        before = [policy(**wish), *said_[:place]]
        yield row(f"policy: a planner's, left at {place}", "events", before, said_[place:])
    yield row(
        "policy: by the worker's default", "events", run[:20], run[20:], defaults={"policy": {"record_assistant": True}}
    )


def _two_sources() -> Json:
    first = stream(sse(messages_api())[:9], "anthropic")
    second = stream(sse(chat()), "openai-chat", "r2")
    return row(
        "two sources in one session", "events", [*first, *second[:4]], [*second[4:], ended("openai-chat", run="r2")]
    )
