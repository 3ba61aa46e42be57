"""Sessions of the history side that are saved midway.

Every word of a history is numbered (``w12w``). A later version may write a request differently, and a test can still
check that each word is present.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from left_sessions import Json, Sent, row, sent

TARGETS = (
    "anthropic",
    "bedrock-converse",
    "cascade",
    "claude-cli",
    "copilot-cli",
    "gemini",
    "openai-chat",
    "openai-responses",
    "vllm",
)
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="

_numbers = itertools.count(1)


def word() -> str:
    return f"w{next(_numbers)}w"


def opened(**fields: Any) -> Sent:
    return sent({"type": "session.opened", **fields})


def appended(message: Json | bytes, **fields: Any) -> Sent:
    if isinstance(message, bytes):  # not representable in Python's JSON
        return sent(b'{"type":"turn.appended","message":%b}' % message)
    return sent({"type": "turn.appended", "message": message, **fields})


def restored(*messages: Json, **fields: Any) -> Sent:
    return sent({"type": "history.restored", "messages": list(messages), **fields})


def rewound(to: str | int, **fields: Any) -> Sent:
    return sent({"type": "history.rewound", "to": to, **fields})


WANTED = sent({"type": "request.wanted"})
CLOSED = sent({"type": "session.closed"})


def text(words: str = "") -> Json:
    return {"type": "text", "text": f"{words} {word()}".strip()}


def user(*blocks: Json, **fields: Any) -> Json:
    return {"role": "user", "content": list(blocks) or [text("Please go on.")], **fields}


def said(*blocks: Json, **fields: Any) -> Json:
    return {"role": "assistant", "content": list(blocks) or [text("Well.")], **fields}


def call(call_id: str, **fields: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": "ls", "input": {"path": word(), "depth": 1.0}, **fields}


def result(call_id: str, **fields: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": [text("files")], **fields}


def thinking() -> Json:
    signed = {"provider": "anthropic", "model": "claude-sonnet-4-5"}
    return {"type": "thinking", "thinking": f"Hm {word()}", "signature": "c2lnbmVk", "issuer": signed}


def image() -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}


def document() -> Json:
    source = {"type": "text", "media_type": "text/plain", "data": f"page {word()}"}
    return {"type": "document", "title": "paper", "source": source}


def unknown() -> Json:
    return {"type": "hologram", "beam": [1, 2.50, word()]}


TOOLS = [
    {"name": "ls", "description": "Lists files.", "input_schema": {"type": "object", "properties": {"path": {}}}},
    {"name": "cat", "input_schema": {"type": "object"}},
]
SETTING = {"model": "claude-sonnet-4-5", "system": "Be brief.", "tools": TOOLS, "params": {"max_tokens": 512}}


def small_talk(turns: int) -> Iterator[Sent]:
    for _ in range(turns):
        yield appended(user())
        yield appended(said())


def calls(first: int, count: int) -> Iterator[Sent]:
    for number in range(first, first + count):
        yield appended(said(text("I look."), call(f"toolu_{number}")))
        yield appended(user(result(f"toolu_{number}")))


def varied() -> list[Sent]:
    """A history with some of everything, settled in more than one segment, with an open end."""
    return [
        appended(user(text("Look at this:"), image(), document())),
        appended(said(thinking(), text("I see."), call("toolu_1"), call("call/2 with spaces"))),
        appended(user(result("call/2 with spaces"), result("toolu_1", is_error=True))),
        appended(said(unknown(), text("That is odd."))),
        appended(user(text("And?"), result("toolu_nobody"))),
        *calls(10, 4),
        appended(said({"type": "redacted_thinking", "data": "b3BhcXVl", "issuer": {"provider": "anthropic"}}, text())),
        *itertools.islice(small_talk(4), 1, None),
        appended(user(text(""), {"type": "text", "text": ""})),
        appended(said(text("Once more."), call("toolu_1"), call("late"))),
        appended(user(result("toolu_1"))),
        appended(user(text("While it runs:"))),
        appended(said(text("Yes."))),
    ]


def continuation() -> list[Sent]:
    """The continuation of every session: the late result, a repeated id, more turns, a rewind."""
    return [
        WANTED,
        appended(user(result("late")), id="again"),
        appended(said(call("toolu_1"))),
        appended(user(result("toolu_1"))),
        *small_talk(1),
        appended(user(image(), text("Is that all?"))),
        rewound(10),
        WANTED,
    ]


# -- sessions ----------------------------------------------------------------------------------------------------


def turns() -> Iterator[Json]:
    def made(name: str, before: list[Sent], then: list[Sent] | None = None, **options: Any) -> Json:
        return row(name, "turns", before, continuation() if then is None else then, **options)

    for target in TARGETS:
        model = {"gemini": "gemini-3-pro", "openai-chat": "gpt-5", "openai-responses": "gpt-5", "vllm": "qwen3"}
        setting = SETTING | ({"model": model[target]} if target in model else {})
        yield made(f"{target}: a varied history", [opened(targets=[target], **setting), *varied()])
    yield made(
        "all targets: in one session, read back midway",
        [opened(targets=list(TARGETS), **SETTING), *varied()[:9], *small_talk(9)],
        [WANTED, *small_talk(1), appended(user())],
        restart=True,
    )
    for name, policy in POLICIES.items():
        before = [
            opened(targets=["anthropic", "openai-chat"], policy=policy, **SETTING),
            *varied()[:8],
            appended(said(call("never"))),
            appended(user(text("Then not."))),
            appended(said(text("Half a"), call("cut", input='{"path": "/', incomplete=True))),
        ]
        yield made(f"policy: {name}", before, [WANTED, appended(user()), appended(said())])
    yield from _resets(made)
    yield from _shapes(made)
    yield from _ends(made)
    yield from _mixtures(made)
    yield from _midway(made)


POLICIES: dict[str, Json] = {
    "tail=prefill": {"tail": "prefill"},
    "tail=keep": {"tail": "keep"},
    "tail=reject": {"tail": "reject"},
    "missing_result=drop": {"missing_result": "drop"},
    "orphan_result=text": {"orphan_result": "text"},
    "incomplete_call=text": {"incomplete_call": "text"},
    "reasoning=strip": {"reasoning": "strip"},
    "strip_tools": {"strip_tools": True},
    "record_assistant": {"record_assistant": True},
    "open_exchanges=1": {"open_exchanges": 1},
}


def _resets(made: Any) -> Iterator[Json]:
    """Sessions that rewound, started again, changed their options, or ended."""
    begun = [opened(**SETTING), *small_talk(20)]
    yield made("many segments", [*begun, *calls(100, 30), *small_talk(30)], restart=True)
    yield made("rewound to a number", [*begun, rewound(7), *small_talk(1)])
    named = [appended(user(), id=f"turn-{at}") for at in range(6)]
    yield made("rewound to an id", [opened(**SETTING), *named, rewound("turn-2")], [named[2], named[4], WANTED])
    yield made(
        "rewound to a message's own id",
        [opened(**SETTING), appended(user(id="m1")), *small_talk(2), rewound("m1")],
        [WANTED],
    )
    yield made("rewound to nothing", [*begun, rewound(0)])
    history = [json.loads(value or b"")["message"] for value, _ in varied()]
    yield made("restored", [*begun, restored(*history)])
    yield made("restored and gone on", [*begun, restored(*history, id="r1"), *small_talk(2)], restart=True)
    yield made("configured anew", [*begun, opened(system="Be long.", targets=["openai-chat", "anthropic"])])
    yield made("closed", [*begun, appended(user(), id="x"), CLOSED], [opened(**SETTING), appended(user(), id="x")])
    yield made(
        "closed and opened again", [*begun, CLOSED, opened(**SETTING | {"model": "claude-opus-4-1"}), *small_talk(9)]
    )
    yield made("opened only", [opened(**SETTING)], [appended(user())])
    given = {"params": {"max_tokens": 64}, "model": "claude-sonnet-4-5"}
    yield made("never opened", [appended(user())], [*small_talk(1)], defaults=given)
    yield made("something that nobody gave", [appended(user())], [*small_talk(1), opened(**SETTING), WANTED])
    yield made("nothing that could be used", [sent(b"{"), sent({"type": "turn.appended", "message": {}})], [WANTED])
    poisoned = [*begun, sent({"type": "turn.appended", "message": {"role": "nobody"}}), appended(user())]
    yield made(
        "quarantined",
        poisoned,
        [appended(user()), restored(user(), said()), appended(user())],
        defaults={"on_dead_letter": "follow"},
    )
    defaults = {"targets": ["openai-chat"], "model": "gpt-5", "system": "Default.", "policy": {"open_exchanges": 3}}
    yield made("under the worker's defaults", [*varied()], defaults=defaults)
    yield made("a key that is no text", [*begun], key=b"\xff\x00\x01h")


def _shapes(made: Any) -> Iterator[Json]:
    """Histories in the shapes of providers and programs."""
    for name, messages in SHAPES.items():
        then = [WANTED, *[appended(message) for message in messages[2:]], appended(user())]
        yield made(f"shape: {name}", [opened(**SETTING), *map(appended, messages), *map(appended, messages[:2])], then)
    marked = {"cache_control": {"type": "ephemeral"}}
    pairs = [(appended(user(text() | marked)), appended(said(text() | marked))) for _ in range(5)]
    targets = ["anthropic", "bedrock-converse"]
    yield made("cache breakpoints", [opened(targets=targets, **SETTING), *itertools.chain(*pairs)])
    systems = [appended({"role": "system", "content": f"Rule {word()}"}) for _ in range(3)]
    yield made("system messages", [opened(**SETTING), *systems[:2], *small_talk(10), systems[2], *small_talk(1)])
    yield made(
        "only system messages",
        [opened(**SETTING), *systems[:1]],
        [systems[1], appended(user()), systems[2], appended(user())],
    )
    torn = b'{"role":"user","content":[{"type":"text","text":"half \\ud83d of a pair w9001w"}]}'
    numbers = call("n1")
    numbers["input"] = {"big": 2**70, "exact": 1.10}
    odd = [
        appended(torn),
        appended(said(numbers)),
        appended(user(result("n1"))),
        appended(user(text("\u2028 \x00 é 漢 🙂"))),
    ]
    yield made("texts and numbers at the edge", [opened(targets=["anthropic", "gemini"], **SETTING), *odd])


def _ends(made: Any) -> Iterator[Json]:
    """Sessions whose end matters: open calls, unanswered requests, fixes that are already reported."""
    one = [opened(targets=["anthropic", "openai-responses"], **SETTING), *small_talk(2), appended(user())]
    yield made("a request that nobody answered", one, [appended(user()), WANTED])
    yield made("a request that was answered", [*one, appended(said())], [appended(user())])
    parallel = [*one, appended(said(call("a"), call("b"), call("c")))]
    yield made("calls that wait", parallel, [appended(user(result(name))) for name in "cab"])
    yield made("calls, one answered", [*parallel, appended(user(result("b")))], [appended(user(result("a"))), WANTED])
    yield made(
        "a fix that was told and may be undone",
        [*parallel, appended(user(text("Stop.")))],
        [appended(user(result("a"), result("b"))), appended(user(result("c"))), *small_talk(2)],
    )
    cut = said(thinking(), text(), call("cut", input='{"pa', incomplete=True))
    yield made("thinking beside a call that was cut", [*one, appended(cut)], [appended(user()), *small_talk(1), WANTED])
    identified = [appended(user(), id="é-1"), appended(said(), id="2"), sent({"type": "request.wanted", "id": "3"})]
    yield made(
        "ids that may come again",
        [opened(**SETTING), *identified],
        [*identified, appended(user(text("other")), id="2"), appended(user(), id="4")],
    )
    recorded = {"origin": "recorded", "source": "claude-cli", "self_driving": True}
    yield made("recorded turns", [opened(**SETTING), appended(user()), appended(said(call("s1")), **recorded)])
    yield made("thinking that nothing follows", [*one, appended(said(thinking()))], [appended(said()), *small_talk(1)])


def _mixtures(made: Any) -> Iterator[Json]:
    """Histories whose messages have more than one shape, and messages that several shapes can have."""
    targets = ["openai-responses", "openai-chat", "anthropic"]
    plain = [
        {"role": "developer", "content": f"Mind {word()}"},
        {"role": "user", "content": f"Go on {word()}", "id": "msg_plain"},
        {"role": "user", "content": [{"type": "input_text", "text": f"Now {word()}"}]},
    ]
    of_responses = [
        {"type": "function_call", "call_id": "m1", "name": "ls", "arguments": json.dumps({"path": word()})},
        {"type": "function_call_output", "call_id": "m1", "output": f"files {word()}"},
    ]
    of_chat = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "m2", "type": "function", "function": _function("ls")}],
        },
        {"role": "tool", "tool_call_id": "m2", "content": f"files {word()}"},
    ]
    of_converse = [{"role": "user", "content": [{"text": f"And {word()}"}]}]
    of_gemini = [{"role": "user", "parts": [{"text": f"And {word()}"}]}]
    for name, messages in {
        "responses first": [*plain[:1], *of_responses, *plain, *of_chat, *of_converse],
        "chat first": [*plain[:1], *of_chat, *plain, *of_responses, *of_gemini],
        "converse first": [*of_converse, *of_responses, *plain, *of_chat],
        "gemini first": [*of_gemini, *of_chat, *plain, *of_responses],
    }.items():
        before = [opened(targets=targets, **SETTING), *map(appended, messages)]
        again = [json.loads(json.dumps(message).replace('"m', '"again-m')) for message in messages]
        yield made(f"mixed shapes: {name}", before, [WANTED, *map(appended, again), appended(said())])


def _midway(made: Any) -> Iterator[Json]:
    """Sessions that are saved between two parts that belong together."""

    def left(name: str, target: str, model: str, before: list[Json], then: list[Json]) -> Json:
        setting = SETTING | {"model": model}
        start = [opened(targets=[target], **setting), *map(appended, before)]
        return made(f"left midway: {name}", start, [*map(appended, then), WANTED])

    pictured = [user(result(name) | {"content": [text("picture"), image()]}) for name in ("p1", "p2")]
    asked = [user(), said(call("p1"), call("p2"))]
    for target, model in (("openai-chat", "gpt-5"), ("vllm", "mistral-small"), ("gemini", "gemini-2.5-flash")):
        shown = [pictured[1], said(), user(), said(), user()]
        yield left(f"parallel pictures, {target}", target, model, [*asked, pictured[0]], shown)
    papers = [user(text(), document(), image()), said(), user(text(), document()), said()]
    yield left("papers of earlier turns", "claude-cli", "claude-sonnet-4-5", papers, [user(), said(), user(image())])
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": word()}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    before = [user(), said(search, call("c1")), user(result("c1"))]
    yield left("a search that runs", "anthropic", "claude-sonnet-4-5", before, [said(found, text()), user()])
    changed = {"role": "system", "content": [{"toolAddition": {"tool": {"name": "cat"}}}]}
    turns_ = [{"role": "user", "content": [{"text": word()}]}, changed]
    yield left("a tool that is added", "bedrock-converse", "anthropic.claude-opus-4-8", turns_, [turns_[0], said()])
    yield left("the model first", "gemini", "gemini-2.5-flash", [said(), user()], [said(), user()])
    item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}}
    hosted = [user(), item]
    yield left("a hosted item", "openai-responses", "gpt-5", hosted, [said(), user()])


def _function(name: str) -> Json:
    return {"name": name, "arguments": json.dumps({"path": word()})}


SHAPES: dict[str, list[Json]] = {
    "chat completions": [
        {"role": "user", "content": f"List {word()}"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": _function("ls")}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": f"files {word()}"},
        {"role": "assistant", "content": f"There {word()}"},
        {"role": "user", "content": [{"type": "text", "text": f"And {word()}"}]},
        {"role": "developer", "content": f"Mind {word()}"},
    ],
    "responses": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"List {word()}"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "b3BhcXVl"},
        {"type": "function_call", "call_id": "c1", "id": "fc_1", **_function("ls")},
        {"type": "function_call_output", "call_id": "c1", "output": f"files {word()}"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": f"There {word()}"}]},
    ],
    "generateContent": [
        {"role": "user", "parts": [{"text": f"List {word()}"}, {"inlineData": {"mimeType": "image/png", "data": PNG}}]},
        {
            "role": "model",
            "parts": [{"functionCall": {"name": "ls", "args": {"path": word()}}, "thoughtSignature": "c2ln"}],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "ls", "response": {"output": word()}}}]},
        {"role": "model", "parts": [{"text": f"There {word()}"}]},
    ],
    "converse": [
        {"role": "user", "content": [{"text": f"List {word()}"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "ls", "input": {"path": word()}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": f"files {word()}"}]}}]},
        {"role": "assistant", "content": [{"text": f"There {word()}"}, {"cachePoint": {"type": "default"}}]},
    ],
    "claude code": [
        {"type": "user", "uuid": "u1", "parentUuid": None, "message": user()},
        {
            "type": "assistant",
            "uuid": "u2",
            "parentUuid": "u1",
            "message": said(thinking(), call("toolu_c"), id="msg_1"),
        },
        {"type": "user", "uuid": "u3", "parentUuid": "u2", "message": user(result("toolu_c"))},
        {"type": "assistant", "uuid": "u4", "parentUuid": "u3", "message": said(id="msg_2")},
    ],
}
