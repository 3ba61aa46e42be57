"""The core: a whole history to a valid request, bytes to bytes, compared with the peers.

    python tests/benchmarks/bench_core.py [--rounds 5] [--peers PYTHON]

The history is valid as is and the same for all sides: 201 messages of an agent at work, about 105 KB. Each peer
converts it from its own shape (see `peers.py`), with JSON around it as it is used, without the head of the request, and
validates nothing. Reknit reads the canonical and OpenAI's shape, head included, repairs, writes and validates. Times
are processor times.
"""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial

import histories
import measure
import msgspec

from reknit import pipeline

ROUNDS_OF_EIGHT = 25
HEAD = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 1024,
    "tools": [{"name": "read_file", "description": "Read a file.", "input_schema": {"type": "object"}}],
}
TARGETS = ("anthropic", "bedrock-converse")
PEERS = ("LiteLLM", "pydantic-ai", "LangChain", "Strands")
BUDGETS = {("anthropic", "LiteLLM"): 3.0}
MOST_OF_PLAIN = dict.fromkeys(("thinking", "images", "parallel calls", "cache marks"), 1.4)
# The content that the peers' shapes can hold too, as they are written here.
OF_PEERS = ("parallel calls", "long results")


class Text(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class Call(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw


class Result(msgspec.Struct, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: str


class Message(msgspec.Struct):
    role: str
    content: list[Text | Call | Result]


class Body(msgspec.Struct):
    model: str
    max_tokens: int
    tools: msgspec.Raw
    messages: list[Message]


def bare_walk(data):
    """The least that any Python could do: typed decode, one look at each block, encode."""
    decode, encode = msgspec.json.Decoder(Body).decode, msgspec.json.Encoder().encode

    def work():
        body = decode(data)
        waiting = set()
        for message in body.messages:
            for block in message.content:
                kind = type(block)
                if kind is Call:
                    waiting.add(block.id)
                elif kind is Result:
                    waiting.remove(block.tool_use_id)
        return encode(body)

    return work


@contextmanager
def peers(python, target, history):
    """Those peers that this Python has, by name: their versions, and what measures them once."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file, ExitStack() as stack:
        file.write(json.dumps(history).encode())
        file.flush()
        found = {}
        for name in PEERS:
            told, once = stack.enter_context(measure.peer(python, "peers.py", name, target, file.name))
            if told:
                found[name] = told.strip(), partial(once, "once")
            else:
                measure.say(f"{name}: {python} does not have it (see --peers)")
        yield found


def whole_history(options, target):
    history = histories.canonical(ROUNDS_OF_EIGHT)
    shapes = {"canonical": history, "openai": histories.openai_chat(history)}
    if target == "bedrock-converse":
        shapes["converse"] = histories.converse(history)
    documents = {shape: json.dumps(HEAD | {"messages": messages}).encode() for shape, messages in shapes.items()}
    for data in documents.values():
        done = pipeline.normalize(data, to=target)
        assert not done.fixes
        assert not done.violations
        assert len(json.loads(done.body)["messages"]) == len(history)
    sides = {shape: ours(data, target) for shape, data in documents.items()}
    sides["walk"] = lambda: measure.seconds_a_call(bare_walk(documents["canonical"]))
    sides["json"] = lambda: measure.seconds_a_call(lambda: json.dumps(json.loads(documents["canonical"])).encode())
    with peers(options.peers, target, history) as there:
        took = measure.medians(sides | {name: once for name, (_, once) in there.items()}, options.rounds)
    what = f"normalise + validate for {target}, {len(history)} messages"
    for name, (version, _) in there.items():
        for shape in documents:
            against(f"{what}, from {shape}", took[shape], f"{name} {version}", took[name], BUDGETS.get((target, name)))
    for side, name in (("walk", "msgspec decode, walk, encode"), ("json", "json.loads + json.dumps")):
        against(f"{what}, from canonical", took["canonical"], name, took[side], None)


def kinds(options, target):
    """The same history with thinking, images and more in it, each against the plain one, also for each byte."""
    plain = histories.canonical(ROUNDS_OF_EIGHT)
    made = {kind: histories.of_kind(plain, kind) for kind in histories.KINDS}
    made["own thinking"] = histories.issued(made["thinking"], target)
    documents = {
        kind: json.dumps(HEAD | {"messages": messages}).encode() for kind, messages in ({"plain": plain} | made).items()
    }
    took = measure.medians({kind: ours(data, target) for kind, data in documents.items()}, options.rounds)
    for kind, messages in made.items():
        what = f"normalise + validate for {target}, with {kind}"
        ratio = took[kind] / took["plain"]
        a_byte = ratio * len(documents["plain"]) / len(documents[kind])
        most = MOST_OF_PLAIN.get(kind)
        measure.report(
            what=what,
            ours=measure.duration(took[kind]),
            theirs=f"plain {measure.duration(took['plain'])}",
            ratio=f"{ratio:.2f} times as long, {a_byte:.2f} for each byte",
            budget=f"at most {most:g} times" if most else "",
            met=ratio <= most if most else None,
        )
        if kind in OF_PEERS:
            with peers(options.peers, target, messages) as there:
                theirs = measure.medians({name: once for name, (_, once) in there.items()}, options.rounds)
            for name, (version, _) in there.items():
                against(what, took[kind], f"{name} {version}", theirs[name], None)


def ours(data, target):
    """Return a function that measures one history with Reknit."""
    return lambda: measure.seconds_a_call(lambda: pipeline.normalize(data, to=target).body)


def against(what, mine, name, theirs, least):
    """Report how much faster Reknit is; ``least`` is the budget."""
    ratio = theirs / mine
    measure.report(
        what=what,
        ours=measure.duration(mine),
        theirs=f"{name} {measure.duration(theirs)}",
        **measure.as_fast(ratio, least),
    )


def main():
    parser = measure.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for target in TARGETS:
        whole_history(options, target)
        kinds(options, target)


if __name__ == "__main__":
    main()
