"""Strategies for hypothesis: raw histories, valid ones, and ones broken in every way that was seen.

This module needs hypothesis, which is not a dependency of the package: no other module imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st

JSON: TypeAlias = dict[str, Any]
Strategy: TypeAlias = st.SearchStrategy[JSON]
Histories: TypeAlias = st.SearchStrategy[list[JSON]]

PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
GIF: Final = "R0lGODlhAQABAAAAACw="

# Few ids, so that they are used twice; legal ones, colliding ones, blank, long.
IDS: Final = ("call_0", "call.0", "call:0", "toolu_1", "toolu_2", "", "x" * 80, "für")
NAMES: Final = ("read", "list_dir", "", " ", "mcp.server/read file", "n" * 150)
TEXTS: Final = (
    "hello",
    "do it",
    "  padded  ",
    "",
    " \n",
    "[Request interrupted by user]",
    "## Current input",
    'q "é" \\ 😀',
    "a\u2028b",
)
RESULTS: Final = ("done", "", " ", "other", "[Request interrupted by user]", "Tool result missing", "aborted")
INPUTS: Final[tuple[Any, ...]] = (
    {},
    {"a": 1},
    {"a": 1.0, "b": [None, {"c": "ü"}]},
    "",
    '{"a": 1}',
    "not json",
    None,
    [1],
    7,
)
MARK: Final = {"type": "ephemeral"}

texts: Strategy = st.sampled_from(TEXTS).map(lambda text: {"type": "text", "text": text})
images: Strategy = st.sampled_from(
    [
        {"type": "base64", "media_type": "image/png", "data": PNG},
        {"type": "base64", "media_type": "image/bmp", "data": PNG},
        {"type": "base64", "media_type": "image/png", "data": GIF},
        {"type": "base64", "media_type": "image/tiff", "data": "SUkqAA=="},
        {"type": "url", "url": "https://example.org/a.png"},
    ]
).map(lambda source: {"type": "image", "source": source})
documents: Strategy = st.just({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}})
thinking: Strategy = st.sampled_from(
    [
        {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
        {"type": "thinking", "thinking": "hm"},
        {"type": "thinking", "thinking": "", "signature": "c2ln"},
        {"type": "thinking", "thinking": "hm", "signature": "91cfbb94-554b-4136-8e21-fa02280d56ed"},
        {"type": "thinking", "thinking": "hm", "signature": "c2ln", "issuer": {"provider": "openai-chat"}},
        {"type": "redacted_thinking", "data": "ZGF0YQ=="},
    ]
)
unknown: Strategy = st.sampled_from(
    [
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "hologram_image", "depth": 3},
    ]
)
calls: Strategy = st.builds(
    lambda id_, name, given: {"type": "tool_use", "id": id_, "name": name, "input": given},
    st.sampled_from(IDS),
    st.sampled_from(NAMES),
    st.sampled_from(INPUTS),
)
incomplete: Strategy = st.sampled_from(IDS).map(
    lambda id_: {"type": "tool_use", "id": id_, "name": "read", "input": '{"path": "/a', "incomplete": True}
)
inner: Strategy = st.one_of(texts, images, unknown)
results: Strategy = st.builds(
    lambda id_, content, error: (
        {"type": "tool_result", "tool_use_id": id_}
        | ({} if content is None else {"content": content})
        | ({"is_error": True} if error else {})
    ),
    st.sampled_from(IDS),
    st.one_of(st.none(), st.sampled_from(RESULTS), st.lists(inner, max_size=3)),
    st.booleans(),
)


def marked(blocks: Strategy) -> Strategy:
    return st.builds(
        lambda block, mark: block | {"cache_control": MARK} if mark else block,
        blocks,
        st.sampled_from([False, False, False, True]),
    )


# Any block in any role; the right ones more often.
user_blocks: Strategy = st.one_of(marked(texts), marked(results), results, images, documents, thinking, unknown, calls)
assistant_blocks: Strategy = st.one_of(marked(texts), calls, calls, thinking, unknown, incomplete, results, images)


def message(role: str, blocks: Strategy) -> Strategy:
    """One message of a role; its content a list, a string, or missing."""
    content = st.one_of(st.lists(blocks, max_size=4), st.lists(blocks, max_size=4), st.sampled_from(TEXTS), st.none())
    return st.builds(
        lambda content, id_: {"role": role, "content": content} | ({"id": id_} if id_ else {}),
        content,
        st.sampled_from([None, None, "m1", "m2"]),
    )


messages: Strategy = st.one_of(
    message("user", user_blocks),
    message("user", user_blocks),
    message("assistant", assistant_blocks),
    message("assistant", assistant_blocks),
    message("system", st.one_of(texts, texts, images, unknown)),
)
broken_histories: Histories = st.lists(messages, min_size=1, max_size=14)


@st.composite
def tool_loops(draw: st.DrawFn) -> list[JSON]:
    """Histories with rounds of calls and answers, some of them damaged."""
    history: list[JSON] = [{"role": "user", "content": "start"}]
    for number in range(draw(st.integers(1, 8))):
        ids = draw(st.sampled_from([["call_0"], ["call_0", "call_1"], [f"toolu_{number}"], ["call.0", "call:0"]]))
        blocks = [{"type": "tool_use", "id": id_, "name": "read", "input": {"n": number}} for id_ in ids]
        history.append({"role": "assistant", "content": blocks})
        answers: list[JSON] = [{"type": "tool_result", "tool_use_id": id_, "content": f"r{number}"} for id_ in ids]
        damage = draw(st.sampled_from(["none", "none", "lost", "late", "doubled", "text first", "interrupted"]))
        say = {"type": "text", "text": f"go on {number}"}
        if damage == "lost":
            answers = answers[1:] or [say]
        elif damage == "doubled":
            answers = [*answers, {**answers[0], "content": "again"}]
        elif damage == "text first":
            answers = [say, *answers]
        elif damage == "interrupted":
            answers = [{**answer, "content": "[Request interrupted by user]"} for answer in answers] + [say]
        if damage == "late":
            history.append({"role": "user", "content": [say]})
            history += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "and"}] * draw(
                st.integers(0, 6)
            )
        history.append({"role": "user", "content": answers})
    if draw(st.booleans()):
        history.append({"role": "assistant", "content": draw(st.sampled_from(["end", "end "]))})
    return history


@st.composite
def parallel_results(draw: st.DrawFn) -> list[JSON]:
    """Histories with parallel calls whose results come in several messages, with media, in any order, or repeated."""
    history: list[JSON] = [{"role": "user", "content": "start"}]
    for number in range(draw(st.integers(1, 3))):
        ids = [f"toolu_{number}_{at}" for at in range(draw(st.integers(2, 3)))]
        history.append({"role": "assistant", "content": [_call_of(id_) for id_ in ids]})
        answers = draw(st.permutations(ids)) + draw(st.lists(st.sampled_from(ids), max_size=1))
        missing = draw(st.sampled_from([0, 0, 0, 1]))
        for id_ in answers[missing:]:
            parts = draw(st.lists(st.one_of(texts, images, documents), min_size=1, max_size=2))
            result: JSON = {"type": "tool_result", "tool_use_id": id_, "content": parts}
            blocks = [result | ({"is_error": True} if draw(st.booleans()) else {})]
            if draw(st.sampled_from([False, False, True])):
                blocks.append({"type": "text", "text": "and"})
            joins = history[-1]["role"] == "user" and draw(st.sampled_from([False, False, True]))
            if joins:
                history[-1]["content"] += blocks
            else:
                history.append({"role": "user", "content": blocks})
        if draw(st.booleans()):
            history.append({"role": "user", "content": "go on"})
    return history


_SERVED: Final = (
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
    {"type": "server_tool_use", "id": "srvtoolu_2", "name": "code_execution", "input": {}},
)
_FAILED: Final = {"type": "code_execution_tool_result_error", "error_code": "unavailable"}
_FOUND: Final = (
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
    {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": _FAILED},
    {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": _FAILED},
)


@st.composite
def provider_runs(draw: st.DrawFn) -> list[JSON]:
    """Histories with calls that the provider runs: alone, in the turn of a client's call, with and without results."""
    history: list[JSON] = [{"role": "user", "content": "start"}]
    for number in range(draw(st.integers(1, 5))):
        said = draw(st.lists(st.sampled_from([*_SERVED, *_FOUND, {"type": "text", "text": "well"}]), max_size=3))
        calls_ = [_call_of(f"toolu_{number}")] if draw(st.booleans()) else []
        history.append({"role": "assistant", "content": [*said, *calls_]})
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": "r"}
        answers: list[JSON] = [result] if calls_ and draw(st.sampled_from([True, True, False])) else []
        if not answers or draw(st.sampled_from([False, False, True])):
            answers.append({"type": "text", "text": "go on"})
        history.append({"role": "user", "content": answers})
    return history[: draw(st.integers(2, len(history)))]


def _call_of(id_: str) -> JSON:
    return {"type": "tool_use", "id": id_, "name": "read", "input": {"id": id_}}


@st.composite
def healthy_histories(draw: st.DrawFn) -> list[JSON]:
    """Histories that need no repair, in the canonical shape."""
    history: list[JSON] = []
    used = 0
    pending: list[str] = []
    for _ in range(draw(st.integers(1, 12))):
        blocks = [{"type": "tool_result", "tool_use_id": id_, "content": "r"} for id_ in pending]
        if not blocks or draw(st.booleans()):
            blocks += [{"type": "text", "text": draw(st.sampled_from(["hello", "go on", " é "]))}]
        history.append({"role": "user", "content": blocks})
        answer: list[JSON] = [{"type": "text", "text": "well"}]
        pending = []
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            pending.append(f"toolu_{used}")
            used += 1
            answer.append({"type": "tool_use", "id": pending[-1], "name": "read", "input": {"a": 1}})
        history.append({"role": "assistant", "content": answer})
    return history[:-1]


def _perturbed_block(draw: st.DrawFn, block: JSON, earlier: list[str]) -> list[JSON]:
    """The damaged form of a valid block: another block, several, or none."""
    changes: list[JSON | None] = [
        None,
        {"type": "text", "text": draw(st.sampled_from(["", " ", "\n\t", "more"]))},
        draw(user_blocks),
        draw(assistant_blocks),
        block | {"cache_control": MARK},
        block | {"issuer": {"provider": "openai-chat"}},
    ]
    if "id" in block:
        changes += [
            block | {"id": draw(st.sampled_from([*IDS, *earlier]))},
            block | {"name": draw(st.sampled_from(NAMES))},
        ]
        changes += [block | {"input": draw(st.sampled_from(INPUTS))}, block | {"caller": {"type": "direct"}}]
        changes += [{"type": "tool_use", "id": block["id"], "name": "read", "input": '{"a', "incomplete": True}]
    if "tool_use_id" in block:
        changes += [block | {"content": draw(st.sampled_from([*RESULTS, [], [{"type": "text", "text": " "}], None]))}]
        changes += [block | {"tool_use_id": draw(st.sampled_from([*IDS, *earlier]))}]
    changed = draw(st.sampled_from(changes))
    return draw(st.sampled_from([[changed], [block, changed], [changed, block]])) if changed else []


@st.composite
def _rich_healthy_histories(draw: st.DrawFn) -> list[JSON]:
    """Healthy histories that also have signed thinking, images, documents and cache breakpoints in them."""
    history = draw(healthy_histories())
    media = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}, "title": "notes"},
    ]
    for turn in history:
        more = draw(st.sampled_from(["", "", "more", "mark"]))
        blocks = turn["content"]
        if more == "mark":
            blocks[-1] = blocks[-1] | {"cache_control": MARK}
        elif more and turn["role"] == "assistant":
            blocks.insert(0, {"type": "thinking", "thinking": "hm", "signature": "c2ln"})
        elif more and blocks[-1]["type"] == "text":
            blocks.append(draw(st.sampled_from(media)))
        elif more:
            blocks[-1] = blocks[-1] | {"content": [{"type": "text", "text": "r"}, draw(st.sampled_from(media))]}
    return history


@st.composite
def perturbed_histories(draw: st.DrawFn) -> list[JSON]:
    """Long healthy histories in which one thing is not as it should be: a block, or a message's role or content."""
    history = [*draw(_rich_healthy_histories()), {"role": "assistant", "content": [{"type": "text", "text": "well"}]}]
    history += draw(_rich_healthy_histories().filter(lambda more: len(more) > 2))
    for number, turn in enumerate(history):
        # Both halves number their calls from 0; ids stay unique, as in a history that is one.
        for block in turn["content"]:
            for key in {"id", "tool_use_id"} & block.keys():
                block[key] += "_late" if number >= len(history) // 2 else ""
    at = draw(st.integers(0, len(history) - 1))
    turn = history[at]
    place = draw(st.integers(0, len(turn["content"]) - 1))
    earlier = [block["id"] for said in history[:at] for block in said["content"] if "id" in block]
    what = draw(st.sampled_from(["block", "block", "block", "words", "words", "role", "content", "message"]))
    if what == "block":
        blocks = turn["content"]
        turn["content"] = [*blocks[:place], *_perturbed_block(draw, blocks[place], earlier), *blocks[place + 1 :]]
    elif what == "words":
        # Valid alone; the preceding block decides.
        turn["content"].insert(place + 1, {"type": "text", "text": "more"})
    elif what == "role":
        turn["role"] = draw(st.sampled_from(["user", "assistant", "system"]))
    elif what == "content":
        turn["content"] = draw(st.sampled_from([*TEXTS, None, []]))
    else:
        history.insert(at, draw(messages))
    return history


@st.composite
def open_histories(draw: st.DrawFn) -> list[JSON]:
    """Histories that end with open turns: calls whose results come late, in any order, or never, and breakpoints."""
    history = draw(healthy_histories())
    waiting: list[str] = []
    for number in range(draw(st.integers(2, 7))):
        ids = [f"open_{number}_{at}" for at in range(draw(st.sampled_from([0, 1, 1, 2])))]
        called = [{"type": "tool_use", "id": id_, "name": "read", "input": {}} for id_ in ids]
        history.append({"role": "assistant", "content": [{"type": "text", "text": "well"}, *called]})
        waiting += ids
        come = draw(st.lists(st.sampled_from(waiting), max_size=3, unique=True)) if waiting else []
        waiting = [id_ for id_ in waiting if id_ not in come]
        blocks = [
            {"type": "tool_result", "tool_use_id": id_, "content": draw(st.sampled_from(RESULTS))} for id_ in come
        ]
        if not blocks or draw(st.booleans()):
            blocks.append({"type": "text", "text": "go on"})
        history.append({"role": "user", "content": blocks})
    for turn in history[-8:]:
        if draw(st.booleans()):
            turn["content"][-1] = turn["content"][-1] | {"cache_control": MARK}
    return history


_SIDES: Final = {"user": "input", "assistant": "output"}
# Text, calls and results as rows of each shape, and a row without content for another provider.
_ROWS: Final[dict[str, Callable[..., list[JSON]]]] = {
    "says": lambda role, text: [
        {"role": role, "content": [{"type": "text", "text": text}]},
        {"role": role, "content": text},
        {"type": "message", "role": role, "content": [{"type": f"{_SIDES[role]}_text", "text": text}]},
        {"role": role, "content": [{"text": text}]},
        {"role": "model" if role == "assistant" else role, "parts": [{"text": text}]},
        # Several shapes can have these.
        {"role": role, "content": [{"type": f"{_SIDES[role]}_text", "text": text}]},
        {"role": role, "content": [{"type": "text", "text": text}], "id": "msg_1"},
    ],
    "instructs": lambda text: [
        {"role": "system", "content": text},
        {"role": "developer", "content": text},
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": text}]},
        {"role": "system", "content": [{"text": text}]},
        {"role": "developer", "content": [{"type": "input_text", "text": text}]},
    ],
    "calls": lambda id_: [
        {"role": "assistant", "content": [{"type": "tool_use", "id": id_, "name": "read", "input": {}}]},
        {"role": "assistant", "tool_calls": [{"id": id_, "function": {"name": "read", "arguments": "{}"}}]},
        {"type": "function_call", "call_id": id_, "name": "read", "arguments": "{}"},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": id_, "name": "read", "input": {}}}]},
        {"role": "model", "parts": [{"functionCall": {"id": id_, "name": "read", "args": {}}}]},
    ],
    "returns": lambda id_, text: [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_, "content": text}]},
        {"role": "tool", "tool_call_id": id_, "content": text},
        {"type": "function_call_output", "call_id": id_, "output": text},
        {"role": "user", "content": [{"toolResult": {"toolUseId": id_, "content": [{"text": text}]}}]},
        {"role": "user", "parts": [{"functionResponse": {"id": id_, "name": "read", "response": {"a": text}}}]},
    ],
    "works": lambda: [
        {
            "role": "assistant",
            "content": [
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
            ],
        },
        {"role": "assistant", "content": None, "reasoning_content": "hm"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"role": "assistant", "content": [{"cachePoint": {"type": "default"}}]},
        {
            "role": "model",
            "parts": [
                {"executableCode": {"language": "PYTHON", "code": "1"}},
                {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
            ],
        },
    ],
}
_ids: st.SearchStrategy[str] = st.sampled_from(("call_0", "call_1", "call.0"))
_acts: st.SearchStrategy[tuple[str, ...]] = st.one_of(
    st.tuples(st.just("says"), st.sampled_from(sorted(_SIDES)), st.sampled_from(TEXTS)),
    st.tuples(st.just("instructs"), st.sampled_from(TEXTS)),
    st.tuples(st.just("calls"), _ids),
    st.tuples(st.just("returns"), _ids, st.sampled_from(RESULTS)),
    st.tuples(st.just("works")),
)
mixed_histories: Histories = st.lists(
    _acts.flatmap(lambda act: st.sampled_from(_ROWS[act[0]](*act[1:]))), min_size=1, max_size=12
)
"""Histories with rows of five shapes, and rows that several shapes can have."""

# A history may be well for long before something happens to it.
spoilt_histories: Histories = st.builds(lambda well, ill: well + ill, healthy_histories(), broken_histories)
histories: Histories = st.one_of(
    broken_histories,
    broken_histories,
    tool_loops(),
    spoilt_histories,
    open_histories(),
    parallel_results(),
    provider_runs(),
)

policies: Strategy = st.fixed_dictionaries(
    {},
    optional={
        "tail": st.sampled_from(["auto", "continue", "prefill", "keep", "reject"]),
        "missing_result": st.sampled_from(["synthesise", "drop"]),
        "orphan_result": st.sampled_from(["drop", "text"]),
        "late_result": st.sampled_from(["replace", "turn", "drop"]),
        "incomplete_call": st.sampled_from(["drop", "text"]),
        "reasoning": st.sampled_from(["keep", "same_issuer", "strip"]),
        "strip_tools": st.booleans(),
        "open_exchanges": st.sampled_from([0, 1, 2, 8]),
    },
)
